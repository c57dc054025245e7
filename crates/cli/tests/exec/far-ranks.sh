# Runs a program of Open MPI with 8 ranks in each of two network namespaces, which a link connects.
#   sh far-ranks.sh HCA PROGRAM
set -eu
hca=$1 program=$2
near=hca-near-$$ far=hca-far-$$
agent=$(mktemp)
trap 'ip netns del "$near"; ip netns del "$far"; rm -f "$agent"' EXIT
ip netns add "$near"
ip netns add "$far"
ip link add v0 netns "$near" type veth peer name v0 netns "$far"
for end in "$near 10.77.0.1" "$far 10.77.0.2"; do
    set -- $end
    ip -n "$1" link set lo up
    ip -n "$1" addr add "$2/24" dev v0
    ip -n "$1" link set v0 up
done
# What mpirun starts on another host: AGENT HOST COMMAND...
cat >"$agent" <<END
#!/bin/sh
shift
exec ip netns exec $far unshare --uts sh -c "hostname far; \$*"
END
chmod +x "$agent"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 UCX_TLS=rc_v,ud_v,self UCX_NET_DEVICES=hca0:1
# 16 ranks spin on a few processors: an answer may take a while.
export UCX_UD_VERBS_TIMEOUT=600s
pass="-x LD_PRELOAD -x LD_LIBRARY_PATH -x HCA_DEVICES -x HCA_PATHS -x UCX_TLS -x UCX_NET_DEVICES -x UCX_UD_VERBS_TIMEOUT"
ip netns exec "$near" unshare --uts sh -c "hostname near; exec \"\$@\"" sh \
    "$hca" exec --device 'auto://v0?share=yes' mpirun --host 10.77.0.1:8,10.77.0.2:8 -n 16 --oversubscribe \
    --mca plm_rsh_agent "$agent" --mca oob_tcp_if_include v0 --mca btl ^openib --mca pml ucx --mca osc ucx \
    $pass "$program"
