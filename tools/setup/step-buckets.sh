# shellcheck shell=bash
# MinIO, pinned, built from its Go module: an S3 server with conditional writes.
minio=github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c
stamp=$(stamp_of "$minio" "$(go version)")
if up_to_date buckets "$stamp"; then
    say "present"
else
    command -v go >/dev/null || die "go is not on the PATH; CONTRIBUTING.md lists what must be there"
    say "building MinIO (three to ten minutes)"
    mkdir -p "$TOOLS/buckets"
    retry "go install of MinIO" env GOBIN="$TOOLS/buckets" go install -trimpath -ldflags='-s -w' "$minio"
    write_stamp buckets "$stamp"
fi
ln -sfn ../buckets/minio "$TOOLS/bin/minio"
