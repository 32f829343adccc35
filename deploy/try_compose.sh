#!/usr/bin/env bash
# Runs docker-compose.yml for real: waits until everything is healthy, looks for secrets and the database from an edge client,
# starts a job on handwritten digits, takes everything down and up again in mid-run, kills the coordinator's container until
# the nodes have carried the job on as peers and handed it back, restarts PostgreSQL. Then two more coordinators come and a
# proxy in front of all three; a second job gets an owner of its own; the first coordinator is killed and stays away until both
# jobs have gone on without it. Then five peers without a server.
#
#     deploy/try_compose.sh              with the engine that `docker` reaches; PYTHON_IMAGE and POSTGRES_IMAGE as in the file
#     deploy/try_compose.sh --by-hand    as root on Debian, with no engine and no images: as deploy/try.sh does, but iptables and
#                                        docker-compose must be installed
#
# PORT (18081) and PROXY_PORT (18082) must be free. The script removes everything that it built and ran, except the
# images.
set -euo pipefail
cd "$(dirname "$0")/.."

. deploy/engine.sh
export SHOAL_PORT=127.0.0.1:${PORT:-18081} SHOAL_PROXY_PORT=127.0.0.1:${PROXY_PORT:-18082}
project=shoal-try-$$
file=.compose-try-$$.yml

compose_file() { "${compose[@]}" --file "$file" --project-name "$project" "$@"; }
cleared() {
  compose_file --profile peers --profile replicas down --volumes --remove-orphans >/dev/null 2>&1 || true
  rm -f "$file"
  stop_the_engine
}
until_true() { # seconds, what, command…
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    [ "$SECONDS" -lt "$end" ] || { echo "waited in vain: $what" >&2; compose_file logs --tail 20 >&2; exit 1; }
    sleep 1
  done
}
of() { docker ps --all --quiet --filter "label=com.docker.compose.project=$project" --filter "label=com.docker.compose.service=$1"; }
healthy() { # service, how many
  local count=0 one
  for one in $(of "$1"); do [ "$(docker inspect --format '{{.State.Health.Status}}' "$one")" != healthy ] || count=$((count + 1)); done
  [ "$count" -eq "$2" ]
}
# Asked through whichever container of that kind runs.
by=coordinator
shoal() { docker exec --interactive "$(of $by | head -n 1)" shoal "$@"; }
field() { # job, field; -1 while no coordinator answers
  shoal jobs show "$1" --json | python3 -c 'import json, sys
print(json.load(sys.stdin).get("data", {}).get("job", {}).get(sys.argv[1], -1))' "$2"
}
at_least() { [ "$(field "$1" version)" -ge "$2" ]; } # job, version
followers() { # how many jobs each owns
  python3 - "http://$SHOAL_PROXY_PORT/api/v1/leader" "$(docker exec "$(of $by | head -n 1)" cat /secrets/coordinator/operator.token)" <<'ASK'
import json, sys, urllib.request
asks = urllib.request.Request(sys.argv[1], headers={"Authorization": f"Bearer {sys.argv[2]}"})
with urllib.request.urlopen(asks, timeout=10) as answer:
    print(*sorted(follower["jobs"] for follower in json.load(answer)["followers"]))
ASK
}
followers_own() { [ "$(followers 2>/dev/null)" = "$1" ]; }
runs() { # job, rounds, whether its nodes may carry it on
  job_file "$1" "$2" "${3:-false}" | docker exec --interactive "$(of coordinator)" sh -c "cat >/tmp/$1.toml"
  shoal run "/tmp/$1.toml" --detach
}
is_done() { [ "$(field "$1" state)" = done ]; }

trap cleared EXIT
if [ "${1:-}" = --by-hand ]; then
  say "an engine and base images by hand, in $work"
  start_an_engine
  make_a_base_image
  make_a_postgres_image
  make_a_proxy_image
fi
# Debian's docker-compose is of before files had names and services could do without others, and builds by itself unless it is told not to.
export DOCKER_BUILDKIT=1 COMPOSE_DOCKER_CLI_BUILD=1
if docker compose version >/dev/null 2>&1; then
  compose=(docker compose)
  cp docker-compose.yml "$file"
else
  compose=(docker-compose)
  sed -e '/^name: /d' -e '/required: false/d' docker-compose.yml >"$file"
fi

clients="edge-client-1 edge-client-2 edge-client-3"
all_healthy() {
  local one
  for one in coordinator $clients; do healthy "$one" 1 || return 1; done
}
say "PostgreSQL, a coordinator, three edge clients"
compose_file up --build --detach
until_true 240 "everything to be healthy" all_healthy

say "what an edge client sees"
docker exec "$(of edge-client-1)" sh -c 'find /secrets -type f' | tee /dev/stderr | grep -qx /secrets/edge-client/node.token
database=$(docker inspect --format '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' "$(of postgres)")
for address in postgres "$database"; do
  ! docker exec -e "HEALTH_URL=tcp://$address:5432" "$(of edge-client-1)" python3 /opt/deploy/health.py || exit 1
done

say "a job"
runs try 3000 true
until_true 120 "some versions" at_least try 3
credentials() {
  local one
  for one in $clients; do docker exec "$(of "$one")" sh -c 'sha256sum /data/state/*/credential.json'; done
}
before=$(field try version) known=$(credentials)
say "down and up again at version $before, or a little later"
compose_file down
compose_file up --detach
until_true 240 "everything to be healthy" all_healthy
until_true 120 "the job to go on" at_least try $((before + 5))
[ "$(credentials)" = "$known" ] || { echo "the nodes have enrolled again" >&2; exit 1; }

say "the coordinator is killed at version $(field try version), or a little later"
docker kill --signal KILL "$(of coordinator)" >/dev/null
carried_on() { docker logs --tail 200 "$(of edge-client-1)" 2>&1 | grep -q '"kind": "gossip"'; }
until_true 120 "its nodes to carry the job on" carried_on
for one in $clients; do healthy "$one" 1 || { echo "$one is not healthy without it" >&2; exit 1; }; done
docker start "$(of coordinator)" >/dev/null
until_true 120 "a coordinator that is healthy again" healthy coordinator 1
before=$(field try version)
say "it is back at version $before"
until_true 240 "the nodes to hand the job back" at_least try $((before + 10))

say "PostgreSQL is restarted at version $(field try version), or a little later"
docker restart "$(of postgres)" >/dev/null

say "two more coordinators and a proxy from version $(field try version) on"
compose_file --profile replicas up --detach --no-recreate coordinator-2 coordinator-3 proxy
for one in coordinator-2 coordinator-3; do until_true 180 "$one to be healthy" healthy "$one" 1; done
until_true 60 "both to be followers" followers_own "0 0"
runs second 60
until_true 60 "one of them to own the second job" followers_own "0 1"
until_true 120 "some versions of it" at_least second 3

by=coordinator-2
before=$(field try version) own=$(field second version)
say "the one that leads is killed at versions $before and $own; it stays away for some time"
docker kill --signal KILL "$(of coordinator)" >/dev/null
until_true 180 "the first job to go on without it" at_least try $((before + 5))
until_true 180 "the second job to go on without it" at_least second $((own + 5))
docker start "$(of coordinator)" >/dev/null
until_true 120 "it to be healthy again" healthy coordinator 1
until_true 300 "the end of the second job" is_done second
shoal jobs stop try
shoal jobs list
shoal nodes list
compose_file --profile replicas down --volumes

say "five peers and no server"
compose_file --profile peers up --build --detach peer1 peer2 peer3 peer4 peer5
ended() {
  local one
  for one in peer1 peer2 peer3 peer4 peer5; do
    [ "$(docker inspect --format '{{.State.Status}} {{.State.ExitCode}}' "$(of $one)")" = "exited 0" ] || return 1
  done
}
until_true 1200 "the end of the peers' job" ended
for one in 1 2 3 4 5; do docker logs "$(of "peer$one")" 2>&1 | tail -n 5; done
say "all is well"
