#!/bin/bash
# The walk-through of the README from images: a clinic and three hospitals, each in a container of its own image.
#   sudo services/try_images.sh
#
# It needs buildah and mmdebstrap (Debian: apt install buildah mmdebstrap), root, 20 GB in TMPDIR, and some minutes; no
# container engine. All that it makes lies in a temporary folder. BASE names another base image, and BUILD_OPTIONS more
# options of `buildah bud`, such as --volume for a pip.conf or --build-arg TORCH_INDEX=URL for PyTorch without CUDA.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; timeout 60 buildah rm --all >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot CONTAINERS_STORAGE_CONF=$work/storage.conf
printf '[storage]\ndriver = "vfs"\ngraphroot = "%s"\nrunroot = "%s"\n' "$work/images" "$work/run" >"$work/storage.conf"
port=${PORT:-8443} epoch=$(git log -1 --format=%ct)

# 1 to 3: a base, where none is named
if [ -z "${BASE:-}" ]; then
    BASE=localhost/securefda-base
    mmdebstrap --quiet --variant=minbase --include=python3,python3-venv bookworm "$work/base.tar"
    empty=$(buildah from scratch)
    buildah add --quiet "$empty" "$work/base.tar" / >/dev/null
    buildah commit --quiet --rm "$empty" "$BASE" >/dev/null
    rm "$work/base.tar"
fi

# 4 and 5: the images
for role in aggregator source; do
    # shellcheck disable=SC2086 # options, and not one word
    buildah bud --quiet --format docker ${BUILD_OPTIONS:-} --build-arg BASE="$BASE" \
        --build-arg SOURCE_DATE_EPOCH="$epoch" --timestamp "$epoch" \
        --tag "securefda-$role" --file "services/$role/Containerfile" .
done

# 6: the kits, made in a container, by the account that will run the sites
install -d -m 700 -o 10001 -g 10001 "$work/federation"
authority=$(buildah from localhost/securefda-source)
buildah run --volume "$work/federation:/federation" "$authority" -- securefda federation init three_hospitals \
    --out /federation/kits --address "127.0.0.1:$port" --set transport.join-deadline-s=120

# 7 to 10: the four sites, each by its image's own entry point
touch "$work/begun"
probes=9464 roots=()
for site in clinic hospital-a hospital-b hospital-c; do
    image=localhost/securefda-$([ "$site" = clinic ] && echo aggregator || echo source)
    container=$(buildah from "$image")
    roots+=("$(buildah mount "$container")")
    # shellcheck disable=SC2207 # no word of an entry point has a blank
    entry=($(buildah inspect --type image --format '{{range .OCIv1.Config.Entrypoint}}{{.}} {{end}}' "$image"))
    buildah run --volume "$work/federation/kits/$site:/kit" "$container" -- "${entry[@]}" \
        --set "metrics.port=$probes" >"$work/$site.log" 2>&1 &
    pids+=($!)
    probes=$((probes + 1)) # the containers share this machine's network
done
failed=0
for _ in "${pids[@]}"; do
    wait -n || { failed=$?; break; }
done
if [ "$failed" != 0 ]; then
    for site in "$work"/*.log; do cat "$site" >&2; done
    exit "$failed"
fi

# The root can be read-only: no process has written beside /kit and /tmp. And two builds hold the same files.
changed=$(find "${roots[@]}" -xdev -newer "$work/begun" -type f -not -path '*/tmp/*')
[ -z "$changed" ] || { echo "error: written outside /kit and /tmp:" "$changed" >&2; exit 1; }
diff --brief --recursive --no-dereference "${roots[0]}/opt/securefda" "${roots[1]}/opt/securefda"
grep "round 12 of 12" "$work/clinic.log"
echo "the walk-through ran from the images; two builds gave the same files"
