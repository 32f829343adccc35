# For try.sh and try_compose.sh, which source it: their job, an engine without installing one, and images that stand in for those that
# cannot be pulled. Needs root on Debian. All is in WORK (else a folder in /tmp), which stays for the next time.

work=${WORK:-/tmp/shoal-try}
engine=

say() { printf '\n== %s\n' "$*"; }

# A job on the digits for three edge clients.
job_file() { # name, rounds, whether they may carry it on without their coordinator (true, false)
  cat <<JOB
name = "$1"
rounds = $2
learner = "shoal.learn.digits:learner"
[algorithm]
name = "fedavg"
lr = 0.1
[schedule]
name = "rounds"
min_nodes = 3
[gossip]
allowed = ${3:-false}
JOB
}

start_an_engine() { # options of dockerd…
  mkdir -p "$work/debs"
  if [ ! -x "$work/root/usr/sbin/dockerd" ]; then
    (cd "$work/debs" && apt-get download -qq docker.io containerd runc debootstrap)
    for deb in "$work"/debs/*.deb; do dpkg -x "$deb" "$work/root"; done
  fi
  export PATH=$work/root/usr/sbin:$work/root/usr/bin:$PATH DOCKER_HOST=unix://$work/docker.sock
  dockerd --data-root "$work/data" --exec-root "$work/exec" --pidfile "$work/dockerd.pid" --host "$DOCKER_HOST" "$@" \
    >"$work/dockerd.log" 2>&1 &
  engine=$!
  until docker info >/dev/null 2>&1; do
    kill -0 "$engine" || { tail -n 5 "$work/dockerd.log" >&2; exit 1; }
    sleep 0.5
  done
}

stop_the_engine() {
  [ -z "$engine" ] || { kill "$engine"; wait "$engine" 2>/dev/null || true; }
}

# Copy the needs of pip and npm into the image: this machine's certificates, pip's variables and folder of wheels.
make_a_base_image() {
  export PYTHON_IMAGE=shoal-try-base
  if [ ! -e "$work/base.done" ]; then
    DEBOOTSTRAP_DIR=$work/root/usr/share/debootstrap debootstrap --variant=minbase \
      --include=python3,python3-venv,ca-certificates bookworm "$work/base" >"$work/debootstrap.log"
    touch "$work/base.done"
  fi
  cp /etc/ssl/certs/ca-certificates.crt "$work/base/etc/ssl/certs/"
  changes=()
  for name in "${!PIP_@}" NODE_EXTRA_CA_CERTS; do
    [ -z "${!name:-}" ] || changes+=(--change "ENV $name=${!name}")
  done
  if [ -d "${PIP_FIND_LINKS:-}" ]; then
    mkdir -p "$work/base$PIP_FIND_LINKS" && cp -r "$PIP_FIND_LINKS/." "$work/base$PIP_FIND_LINKS"
  fi
  tar --directory "$work/base" --exclude=./proc --exclude=./sys --exclude=./var/cache/apt --one-file-system --create . |
    docker import "${changes[@]}" - "$PYTHON_IMAGE" >/dev/null
}

# As much of the official image's entry point as docker-compose.yml needs, over Debian's PostgreSQL.
make_a_postgres_image() {
  export POSTGRES_IMAGE=shoal-try-postgres
  mkdir -p "$work/postgres"
  cat >"$work/postgres/entry" <<'ENTRY'
#!/bin/sh
set -eu
export PGDATA=/var/lib/postgresql/data
if [ "$(id -u)" = 0 ]; then
  mkdir -p "$PGDATA"
  chown -R postgres "$PGDATA" /var/run/postgresql
  chmod 700 "$PGDATA"
  exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  initdb --encoding=UTF8 --locale=C.UTF-8 --username="$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" \
    --auth-host=scram-sha-256 --auth-local=trust >/dev/null
  echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
  pg_ctl -w -o "-c listen_addresses=" start >/dev/null
  createdb --username="$POSTGRES_USER" "$POSTGRES_DB"
  pg_ctl -w -m fast stop >/dev/null
fi
exec postgres -c "listen_addresses=*"
ENTRY
  chmod +x "$work/postgres/entry"
  cat >"$work/postgres/Dockerfile" <<DOCKERFILE
FROM $PYTHON_IMAGE
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends postgresql-15 && rm -rf /var/lib/apt/lists/*
COPY entry /entry
ENV PATH=/usr/lib/postgresql/15/bin:\$PATH
STOPSIGNAL SIGINT
ENTRYPOINT ["/entry"]
DOCKERFILE
  docker build --quiet --network host --tag "$POSTGRES_IMAGE" "$work/postgres"
}

# Debian's HAProxy, begun as the official image begins it.
make_a_proxy_image() {
  export HAPROXY_IMAGE=shoal-try-haproxy
  mkdir -p "$work/haproxy"
  cat >"$work/haproxy/Dockerfile" <<DOCKERFILE
FROM $PYTHON_IMAGE
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends haproxy && rm -rf /var/lib/apt/lists/*
STOPSIGNAL SIGUSR1
USER haproxy
CMD ["haproxy", "-W", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"]
DOCKERFILE
  docker build --quiet --network host --tag "$HAPROXY_IMAGE" "$work/haproxy"
}
