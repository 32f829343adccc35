#!/usr/bin/env bash
# Builds the images and runs them for real: a coordinator, three edge clients, a job on handwritten digits. Kills the
# coordinator's container in mid-run, starts it again, and sees that the run goes on to its end.
#
#     deploy/try.sh              with the engine that `docker` reaches, and PYTHON_IMAGE (else that of the Dockerfile)
#     deploy/try.sh --by-hand    as root on Debian, with no engine: takes Debian's, without installing it, and makes the
#                                base image by debootstrap, all in WORK (else a folder in /tmp, which stays for the next time)
#
# Containers share the host's network here, so that an engine without a bridge will do; PORT (18080) must be free. The
# script removes everything that it built and ran, except the images.
set -euo pipefail
cd "$(dirname "$0")/.."

. deploy/engine.sh
port=${PORT:-18080}
tag=shoal-try-$$

cleared() {
  docker rm --force --volumes "$tag" "$tag-1" "$tag-2" "$tag-3" >/dev/null 2>&1 || true
  docker volume rm "$tag" >/dev/null 2>&1 || true
  stop_the_engine
}
trap cleared EXIT

until_true() { # seconds, what, command…
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    [ "$SECONDS" -lt "$end" ] || { echo "waited in vain: $what" >&2; docker logs --tail 20 "$tag" >&2; exit 1; }
    sleep 0.5
  done
}

healthy() { [ "$(docker inspect --format '{{.State.Health.Status}}' "$1")" = healthy ]; }
in_coordinator() {
  docker exec --interactive --env SHOAL_CLIENT__URL="http://127.0.0.1:$port" \
    --env SHOAL_CLIENT__TOKEN_FILE=/data/operator.token "$tag" "$@"
}
told() { # path in the answer, command…
  local path=$1
  shift
  in_coordinator "$@" --json | docker exec --interactive "$tag" python3 -c \
    'import json, sys, functools, operator; print(functools.reduce(operator.getitem, sys.argv[1].split("."), json.load(sys.stdin)))' "$path"
}
field() { told "data.job.$1" shoal jobs show try; }
at_least() { [ "$(field version)" -ge "$1" ]; }
is_done() { [ "$(field state)" = done ]; }

if [ "${1:-}" = --by-hand ]; then
  say "an engine and a base image by hand, in $work"
  start_an_engine --bridge=none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false
  make_a_base_image
fi

for role in coordinator edge_client; do
  say "image $role"
  DOCKER_BUILDKIT=1 docker build --network host --file "$role/Dockerfile" --tag "shoal-${role/_/-}:try" \
    ${PYTHON_IMAGE:+--build-arg "PYTHON_IMAGE=$PYTHON_IMAGE"} ${TORCH_INDEX:+--build-arg "TORCH_INDEX=$TORCH_INDEX"} .
done

shut_in=(--network host --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges)
say "a coordinator"
docker run --detach --name "$tag" "${shut_in[@]}" --volume "$tag:/data" --env SHOAL_COORDINATOR__HOST=127.0.0.1 \
  --env "SHOAL_COORDINATOR__PORT=$port" --env "HEALTH_URL=http://127.0.0.1:$port/healthz" shoal-coordinator:try
until_true 120 "a coordinator that is well" healthy "$tag"

say "three edge clients"
token=$(told data.token shoal token create --uses 3)
for i in 1 2 3; do
  docker run --detach --name "$tag-$i" "${shut_in[@]}" --env "SHOAL_EDGE__URL=http://127.0.0.1:$port" \
    --env "SHOAL_EDGE__TOKEN=$token" --env "SHOAL_EDGE__NAME=try-$i" --env SHOAL_EDGE__THREADS=1 \
    --env SHOAL_EDGE__LEARNER=shoal.learn.digits:learner --env "SHOAL_EDGE__OPTIONS={\"part\": $((i - 1)), \"parts\": 3}" \
    shoal-edge-client:try
done
for i in 1 2 3; do until_true 120 "an edge client that is well" healthy "$tag-$i"; done

say "a job"
job_file try 60 | in_coordinator sh -c 'cat >/tmp/try.toml'
in_coordinator shoal run /tmp/try.toml --detach
until_true 120 "some versions" at_least 3
before=$(field version)
docker kill --signal KILL "$tag" >/dev/null
say "killed the coordinator at version $before or a little later; now it is $(docker inspect --format '{{.State.Status}}' "$tag")"
docker start "$tag" >/dev/null
until_true 120 "a coordinator that is well again" healthy "$tag"
until_true 300 "the end of the job" is_done
say "the job is done, at version $(field version)"
in_coordinator shoal jobs show try
for i in 1 2 3; do
  [ "$(docker inspect --format '{{.RestartCount}} {{.State.Running}}' "$tag-$i")" = "0 true" ] || { echo "$tag-$i ended" >&2; exit 1; }
done
for one in "$tag" "$tag-1"; do
  docker exec "$one" sh -c 'id -u; ! touch /x 2>/dev/null && grep CapEff /proc/self/status' | tr '\n' ' '
done
say "all is well"
