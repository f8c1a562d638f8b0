# The roles of a coordination store in etcd, below the prefix PREFIX/. Run these as root; then give each user one of them:
#
#   etcdctl user add NAME
#   etcdctl user grant-role NAME metal-runner
#
# A role of an earlier version keeps what it had. For an approver, take that away, and grant PREFIX/used/ as below:
#
#   etcdctl role revoke-permission --prefix=true ROLE PREFIX/audit/
#   etcdctl role revoke-permission --prefix=true ROLE PREFIX/old/

etcdctl role add metal-runner
etcdctl role grant-permission --prefix=true metal-runner read PREFIX/
etcdctl role grant-permission metal-runner readwrite PREFIX/meta   # until the store has its id, after that: revoke-permission
etcdctl role grant-permission --prefix=true metal-runner readwrite PREFIX/lock/
etcdctl role grant-permission --prefix=true metal-runner readwrite PREFIX/active/
etcdctl role grant-permission --prefix=true metal-runner readwrite PREFIX/used/
etcdctl role grant-permission --prefix=true metal-runner readwrite PREFIX/name/
etcdctl role grant-permission --prefix=true metal-runner readwrite PREFIX/uid/
etcdctl role grant-permission --prefix=true metal-runner readwrite PREFIX/past/
etcdctl role grant-permission --prefix=true metal-runner readwrite PREFIX/audit/
etcdctl role grant-permission --prefix=true metal-runner readwrite PREFIX/told/
etcdctl role grant-permission --prefix=true metal-runner readwrite PREFIX/alive/
etcdctl role grant-permission --prefix=true metal-runner readwrite PREFIX/seen/
etcdctl role grant-permission --prefix=true metal-runner readwrite PREFIX/bound/
etcdctl role grant-permission --prefix=true metal-runner readwrite PREFIX/old/

etcdctl role add metal-approver
etcdctl role grant-permission --prefix=true metal-approver read PREFIX/
etcdctl role grant-permission --prefix=true metal-approver readwrite PREFIX/approvals/
etcdctl role grant-permission --prefix=true metal-approver readwrite PREFIX/used/
etcdctl role grant-permission --prefix=true metal-approver readwrite PREFIX/told/

etcdctl role add metal-reviewer
etcdctl role grant-permission --prefix=true metal-reviewer read PREFIX/
