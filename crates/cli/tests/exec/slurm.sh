# Runs a program of Open MPI by srun, with a Slurm of its own that ends with the script.
#   sh slurm.sh HCA PROGRAM RANKS
set -eu
hca=$1 program=$2 ranks=$3
host=$(hostname -s)
folder=$(mktemp -d)
started=
end() {
    # One after the other: a step tells slurmctld of its end, and slurmd waits for its steps.
    for process in $started; do
        kill "$process" || true
        wait "$process" || true
    done
    rm -rf "$folder"
}
trap end EXIT
mkdir "$folder/state" "$folder/spool" "$folder/run"
chmod 755 "$folder" "$folder/run"
(umask 077 && head -c 1024 /dev/urandom >"$folder/key")
cat >"$folder/slurm.conf" <<END
ClusterName=hca
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/run/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/run/slurmctld.pid
SlurmdPidFile=$folder/run/slurmd.pid
SlurmctldPort=$((20000 + $$ % 20000))
SlurmdPort=$((40000 + $$ % 20000))
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=16
PartitionName=all Nodes=ALL Default=YES State=UP
END
export SLURM_CONF="$folder/slurm.conf"
start() {
    "$@" >>"$folder/said" 2>&1 &
    started="$! $started"
}
start munged --force -F --key-file="$folder/key" --socket="$folder/run/munge" --pid-file="$folder/run/munge.pid" \
    --log-file="$folder/munge.log" --seed-file="$folder/run/seed"
until [ -e "$folder/run/munge" ]; do sleep 0.1; done
start slurmctld -D
start slurmd -D -N "$host"
tries=0
until sinfo -h -t idle 2>/dev/null | grep -q idle; do
    tries=$((tries + 1))
    [ $tries -lt 300 ] || { cat "$folder/said" >&2; exit 1; }
    sleep 0.2
done
export UCX_TLS=rc_v,ud_v,self UCX_NET_DEVICES=hca0:1 UCX_UD_VERBS_TIMEOUT=600s
export OMPI_MCA_pml=ucx OMPI_MCA_osc=ucx OMPI_MCA_btl=^openib OMPI_MCA_mpi_yield_when_idle=1
"$hca" exec --device 'auto://127.0.0.1?share=yes' srun --mpi=pmix -n "$ranks" "$program"
