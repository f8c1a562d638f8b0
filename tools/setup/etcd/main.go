// The etcd server as a program of its own, from its Go module: the storage of the tests' API servers.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
