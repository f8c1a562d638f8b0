# shellcheck shell=bash
# etcd and toxiproxy, pinned, built from their Go modules: the storage of the tests' API servers, and a network that fails on demand.
sources=$SETUP/etcd
toxiproxy=github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0
stamp=$(stamp_of "$(cat "$sources"/*)" "$toxiproxy" "$(go version)")
if up_to_date etcd "$stamp"; then
    say "present"
else
    command -v go >/dev/null || die "go is not on the PATH; CONTRIBUTING.md lists what must be there"
    say "building etcd and toxiproxy (a minute or two)"
    mkdir -p "$TOOLS/etcd"
    retry "go build of etcd" go build -C "$sources" -trimpath -ldflags='-s -w' -o "$TOOLS/etcd/etcd" .
    retry "go install of toxiproxy" env GOBIN="$TOOLS/etcd" go install "$toxiproxy"
    mv -f "$TOOLS/etcd/server" "$TOOLS/etcd/toxiproxy"
    write_stamp etcd "$stamp"
fi
ln -sfn ../etcd/etcd "$TOOLS/bin/etcd"
ln -sfn ../etcd/toxiproxy "$TOOLS/bin/toxiproxy"
