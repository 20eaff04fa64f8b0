"""The text of a private cluster's configuration files. Pure: nothing is read, written or started here."""

from __future__ import annotations

from jobs.private_slurm.layout import CONTROLLER, Layout, State

LOOPBACK = "127.0.0.1"
MEMORY_MB = 4000
GRACE_S = 15
"""From the signal of a preemption to the end: time for one checkpoint."""

COMMON = """\
ClusterName=hpcckpt
SlurmctldHost={controller}({loopback})
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued job waits until its old credential has expired: two minutes where nothing is said.
AuthInfo=socket={munge_socket},cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={saved}
SlurmdSpoolDir={spool}/%n
# PMIx keeps its files here: nodes that share a folder would share them.
TmpFS={disks}/%n
SlurmctldPidFile={run}/slurmctld.pid
SlurmdPidFile={run}/slurmd.%n.pid
SlurmctldLogFile={log}/slurmctld.log
SlurmdLogFile={log}/slurmd.%n.log
FirstJobId={first_job}
MpiDefault=pmix
PropagateResourceLimitsExcept=MEMLOCK

# Nodes claim processors that the machine need not have, and no cgroup is touched.
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
# Without cgroups Slurm loses sight of a process whose parent died, such as a rank of a killed mpirun.
Epilog={epilog}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,bf_interval=5,sched_interval=5,sched_min_interval=1

# A dead node is noticed within half a minute and serves again as soon as it is back.
SlurmdTimeout=20
ReturnToService=2
KillWait=5
UnkillableStepTimeout=30
MessageTimeout=20

# A job of `urgent` takes nodes from jobs of `main`, which get their own signal first and go back to the queue.
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
SlurmctldParameters=preempt_send_user_signal
"""
NODE = (
    "NodeName={name} NodeHostname={name} NodeAddr={loopback} Port={port} CPUs={cpus} Boards=1 SocketsPerBoard=1 "
    "CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory={memory} State=UNKNOWN\n"
)
PARTITIONS = """\
PartitionName=main Nodes={nodes} Default=YES MaxTime=INFINITE State=UP PriorityTier=10 GraceTime={grace}
PartitionName=urgent Nodes={nodes} MaxTime=INFINITE State=UP PriorityTier=100 PreemptMode=OFF
"""
WITH_ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={loopback}
AccountingStoragePort={port}
AccountingStoragePass={munge_socket}
"""
WITHOUT_ACCOUNTING = "AccountingStorageType=accounting_storage/none\n"
DATABASE_DAEMON = """\
AuthType=auth/munge
AuthInfo=socket={munge_socket}
CommunicationParameters=NoInAddrAny
DbdHost={controller}
DbdAddr={loopback}
DbdPort={port}
SlurmUser=root
LogFile={log}/slurmdbd.log
PidFile={run}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
"""
EPILOG = """\
#!/bin/sh
# Runs on each node when a job has left it: kills what is left of that job there, as cgroups do on a large machine.
here=$(readlink /proc/self/ns/mnt)
for file in $(grep -lsz "^SLURM_JOB_ID=$SLURM_JOB_ID$" /proc/[0-9]*/environ); do
    process=${file#/proc/}
    process=${process%/environ}
    [ "$process" = $$ ] || [ "$(readlink "/proc/$process/ns/mnt")" != "$here" ] || kill -KILL "$process"
done
exit 0
"""


def slurm(layout: Layout, state: State) -> str:
    """slurm.conf: the same file for the daemons and for everybody who uses the cluster."""
    facts = _facts(layout)
    parts = [COMMON.format(**facts, port=state.port, first_job=state.first_job), "\n"]
    accounting = WITH_ACCOUNTING if state.shape.accounting else WITHOUT_ACCOUNTING
    parts.append(accounting.format(**facts, port=state.port + 1))
    for name in state.shape.names:
        port = state.node_port(name)
        parts.append(NODE.format(name=name, port=port, cpus=state.shape.cpus, memory=MEMORY_MB, loopback=LOOPBACK))
    parts.append(PARTITIONS.format(nodes=",".join(state.shape.names), grace=GRACE_S))
    return "".join(parts)


def database_daemon(layout: Layout, state: State) -> str:
    """slurmdbd.conf."""
    return DATABASE_DAEMON.format(**_facts(layout), port=state.port + 1)


def hosts(state: State, machine: str) -> str:
    """The nodes' /etc/hosts: every name of the cluster is this machine's loopback; `machine` is its own file."""
    names = ["localhost", CONTROLLER, *state.shape.names]
    return "".join(f"{LOOPBACK} {name}\n" for name in names) + machine


def _facts(layout: Layout) -> dict[str, object]:
    paths = {name: value for name, value in vars(layout).items() if not name.startswith("_")}
    return {**paths, "controller": CONTROLLER, "loopback": LOOPBACK}
