#!/bin/sh
# Every file NAME of /run/secrets (or $GRPO_SECRETS_DIR) becomes the variable NAME in capitals, unless that is set:
# /run/secrets/grpo_api_token → GRPO_API_TOKEN. Then the command runs in place of this script, and gets its signals.
set -eu
for file in "${GRPO_SECRETS_DIR:-/run/secrets}"/*; do
  [ -f "$file" ] || continue
  name=$(basename "$file" | tr 'a-z.-' 'A-Z__')
  case $name in [!A-Z_]* | *[!A-Z0-9_]*) continue ;; esac
  eval "known=\${$name:-}"
  [ -z "$known" ] || continue
  if [ ! -r "$file" ]; then
    echo "error: the secret $file cannot be read by user $(id -u); on the host: chmod a+r the file, its folder may stay closed" >&2
    exit 1
  fi
  value=$(cat "$file")
  [ -z "$value" ] || export "$name=$value"
done
exec "$@"
