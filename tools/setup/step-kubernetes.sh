# shellcheck shell=bash
# kube-apiserver, pinned, built from its Go modules: a Kubernetes cluster as far as the tests need one. It keeps its
# data in the etcd of step-etcd.sh.
sources=$SETUP/kubernetes
version=$(sed -n 's|^[[:space:]]*k8s.io/kubernetes \(v[0-9.]*\).*|\1|p' "$sources/go.mod")
# No stamp_of: nothing in it holds the path of this folder, and it takes minutes to build.
stamp=$(cat "$sources"/* <(go version) | sha256sum | cut -d' ' -f1)
if up_to_date kubernetes "$stamp"; then
    say "present"
else
    command -v go >/dev/null || die "go is not on the PATH; CONTRIBUTING.md lists what must be there"
    say "building kube-apiserver $version (three to ten minutes, once)"
    mkdir -p "$TOOLS/kubernetes"
    # Not optimised: half the time to build, and no figure of ours depends on how fast it is.
    retry "go build of kube-apiserver" go build -C "$sources" -p=2 -trimpath \
        -gcflags='all=-N -l -dwarf=false' \
        -ldflags="-s -w -X k8s.io/component-base/version.gitVersion=$version" \
        -o "$TOOLS/kubernetes/kube-apiserver" k8s.io/kubernetes/cmd/kube-apiserver
    write_stamp kubernetes "$stamp"
fi
ln -sfn ../kubernetes/kube-apiserver "$TOOLS/bin/kube-apiserver"
