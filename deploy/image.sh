#!/bin/sh
# The steps that the three Dockerfiles share.
#
#     image.sh install EXTRAS   install shoal from /src with these extras into the virtual environment /opt/shoal
#     image.sh user FOLDER…     make the user `shoal`, and these folders for it alone: a fresh volume there belongs to it too
set -eu

case $1 in
  install)
    # The base image's own packages can be seen: a base with PyTorch for CUDA keeps that PyTorch.
    python3 -m venv --system-site-packages /opt/shoal
    if [ -n "${TORCH_INDEX:-}" ]; then
      torch=$(python3 -c 'import tomllib; print(*tomllib.load(open("/src/pyproject.toml", "rb"))["project"]["optional-dependencies"]["torch"])')
      # shellcheck disable=SC2086
      /opt/shoal/bin/pip install --index-url "$TORCH_INDEX" $torch
    fi
    /opt/shoal/bin/pip install "/src[$2]"
    /opt/shoal/bin/pip uninstall --yes pip setuptools
    # 45 MB that nothing reads: numpy's own tests, and botocore's descriptions of other services than S3 and its sign-in.
    find /opt/shoal/lib -type d -path "*/site-packages/numpy/*" -name tests -prune -exec rm -r {} +
    find /opt/shoal/lib -type d -path "*/site-packages/botocore/data/*" -prune \
      ! -name s3 ! -name sts ! -name sso ! -name sso-oidc -exec rm -r {} +
    ;;
  user)
    shift
    useradd --uid 10001 --user-group --no-create-home --home-dir /data --shell /usr/sbin/nologin shoal
    install -d -o shoal -g shoal -m 0700 "$@"
    ;;
esac
