use std::collections::HashMap;
use std::time::Duration;

use super::*;
use crate::limits::Phase;

fn read(variables: &str) -> Result<Option<World>, WorldError> {
    let variables: HashMap<&str, &str> =
        variables.split_whitespace().map(|pair| pair.split_once('=').expect("NAME=value")).collect();
    World::from_env(|name| variables.get(name).map(|value| (*value).to_string()))
}

fn world(variables: &str) -> World {
    read(variables).expect("complete").expect("several ranks")
}

fn refused(variables: &str, parts: &[&str]) {
    let error = read(variables).expect_err(variables).to_string();
    for part in parts {
        assert!(error.contains(part), "{part:?} is missing in {error}");
    }
}

const TORCHRUN: &str =
    "RANK=3 LOCAL_RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=node1 MASTER_PORT=29400 GROUP_RANK=1";
const SLURM: &str = "SLURM_PROCID=5 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_NTASKS=7 SLURM_STEP_NUM_TASKS=7 \
                     SLURM_STEP_NUM_NODES=2 SLURM_STEP_TASKS_PER_NODE=4,3 SLURM_JOB_NODELIST=node[03-07,9] \
                     SLURM_JOB_ID=4711 SLURM_STEP_ID=0";
const OPEN_MPI: &str = "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_SIZE=4 \
                        OMPI_COMM_WORLD_LOCAL_SIZE=2";

#[test]
fn nothing_and_one_process_are_no_world() {
    for variables in [
        "",
        "RANK=0",
        "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1",
        "SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_STEP_NUM_TASKS=1",
        // A batch script, and the shell of `salloc -n 4`.
        "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=4 SLURM_JOB_ID=1 SLURM_JOB_NODELIST=a",
        "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=4 SLURM_JOB_ID=1 SLURM_STEP_NUM_TASKS=1",
        "OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0",
        "PMI_SIZE=1 PMI_RANK=0",
    ] {
        assert!(read(variables).expect("complete").is_none(), "{variables}");
    }
}

#[test]
fn torchrun_describes_the_world_and_keeps_its_port() {
    let found = world(TORCHRUN);
    assert_eq!((found.rank, found.size, found.local_rank, found.local_size), (3, 4, 1, 2));
    assert_eq!((found.master, found.launcher, found.restart), (("node1".into(), 29400), Launcher::Torchrun, 0));

    let elastic = "TORCHELASTIC_RESTART_COUNT=2 TORCHELASTIC_RUN_ID=run TORCHELASTIC_USE_AGENT_STORE=True";
    let found = world(&format!("{TORCHRUN} {elastic}"));
    assert_eq!((found.master.1, found.restart), (29401, 2), "torchrun's own store has MASTER_PORT");
    assert_eq!(found.secret, Secret(b"run".to_vec()), "another torchrun's ranks are refused");
    assert_eq!(world(&format!("{TORCHRUN} {elastic} KILN_MASTER_PORT=7000")).master.1, 7000);
    let found = world(&format!("{TORCHRUN} {elastic} KILN_SECRET=s"));
    assert_eq!(found.secret, Secret(b"s".to_vec()));
    assert!(!format!("{found:?}").to_lowercase().contains("secret"), "{found:?}");

    let last = TORCHRUN.replace("29400", "65535");
    assert_eq!(world(&format!("{last} {elastic}")).master.1, 65534);
}

#[test]
fn torchrun_on_one_machine_needs_no_address() {
    let found = world("RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=far.away MASTER_PORT=1");
    assert_eq!(found.master.0, "127.0.0.1");
    assert!(found.is_one_machine());

    // Kubernetes starts one process per pod and sets no local variables.
    let found = world("RANK=1 WORLD_SIZE=2 MASTER_ADDR=job-master-0 MASTER_PORT=23456");
    assert_eq!((found.local_rank, found.local_size, found.is_one_machine()), (0, 1, false));
}

#[test]
fn slurm_describes_the_step() {
    let found = world(SLURM);
    assert_eq!((found.rank, found.size, found.local_rank, found.local_size), (5, 7, 1, 3));
    assert_eq!((found.master.0.as_str(), found.launcher), ("node03", Launcher::Slurm));
    assert!((12_000..32_000).contains(&found.master.1));

    let other_job = world(&SLURM.replace("4711", "4712"));
    assert_ne!((other_job.master.1, other_job.secret), (found.master.1, found.secret), "two jobs on one node");
    let given = world(&format!("{SLURM} MASTER_PORT=5000 MASTER_ADDR=other"));
    assert_eq!(given.master, ("other".into(), 5000));

    let alone = world(&SLURM.replace("NODES=2", "NODES=1"));
    assert_eq!((alone.local_size, alone.master.0.as_str()), (7, "127.0.0.1"));
}

#[test]
fn torchrun_and_mpirun_win_inside_a_slurm_job() {
    assert_eq!(world(&format!("{SLURM} {TORCHRUN}")).launcher, Launcher::Torchrun);
    assert_eq!(world(&format!("{SLURM} {OPEN_MPI} MASTER_ADDR=a")).launcher, Launcher::Mpi);
    assert_eq!(world(&format!("{SLURM} PMI_RANK=5 PMI_SIZE=7")).launcher, Launcher::Slurm, "`srun --mpi=pmi2`");
}

#[test]
fn mpirun_describes_the_world() {
    let found = world(&format!("{OPEN_MPI} MASTER_ADDR=node1"));
    assert_eq!((found.rank, found.size, found.local_rank, found.local_size), (2, 4, 0, 2));
    assert_eq!((found.master, found.launcher), (("node1".into(), 29500), Launcher::Mpi));

    let mpich = "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2";
    assert_eq!(world(mpich).master, ("127.0.0.1".into(), 29500));
    let named = |job: &str| world(&format!("{mpich} PMIX_NAMESPACE={job}")).master.1;
    assert_ne!(named("a"), named("b"), "two runs on one machine");
}

#[test]
fn kilns_own_launcher_describes_the_world() {
    let variables = "KILN_RANK=1 KILN_WORLD_SIZE=2 KILN_MASTER_PORT=7000 KILN_SECRET=s KILN_DEVICE=cuda:4 \
                     KILN_LAUNCHER_PID=1234";
    let found = world(&format!("{variables} {TORCHRUN}"));
    assert_eq!((found.rank, found.size, found.local_rank, found.local_size), (1, 2, 1, 2));
    assert_eq!((found.device, found.launcher), (Some(DeviceName::Cuda(4)), Launcher::Kiln));
    assert_eq!(found.master, ("127.0.0.1".into(), 7000));
    assert!(found.launcher_is_gone(), "this test is not a child of process 1234");
    refused(&variables.replace("cuda:4", "tpu"), &["KILN_DEVICE is \"tpu\"", "`cpu`"]);
}

#[test]
fn an_error_names_the_variable_its_value_and_what_is_missing() {
    refused(&TORCHRUN.replace(" MASTER_PORT=29400", ""), &["WORLD_SIZE=4 is set, as torchrun does", "MASTER_PORT"]);
    refused(&TORCHRUN.replace("MASTER_ADDR=node1", ""), &["MASTER_ADDR is not"]);
    refused("WORLD_SIZE=2", &["RANK is not", "unset WORLD_SIZE"]);
    refused(&TORCHRUN.replace("LOCAL_RANK=1", ""), &["LOCAL_RANK is not"]);
    refused(&TORCHRUN.replace("RANK=3 ", "RANK=4 "), &["RANK is \"4\"", "below WORLD_SIZE (4)"]);
    refused(&TORCHRUN.replace("LOCAL_WORLD_SIZE=2", "LOCAL_WORLD_SIZE=5"), &["LOCAL_WORLD_SIZE is \"5\""]);
    refused(&TORCHRUN.replace("29400", "http"), &["MASTER_PORT is \"http\"", "a port"]);
    refused(&TORCHRUN.replace("29400", "0"), &["MASTER_PORT is \"0\""]);
    for size in ["0", "-2", "two", "1000000"] {
        refused(&format!("RANK=0 WORLD_SIZE={size}"), &[&format!("WORLD_SIZE is {size:?}"), "1 to 65536"]);
    }
    refused(&SLURM.replace("SLURM_JOB_NODELIST=node[03-07,9]", ""), &["SLURM_JOB_NODELIST is not", "`srun`"]);
    refused(&SLURM.replace("node[03-07,9]", "node["), &["SLURM_JOB_NODELIST is \"node[\"", "MASTER_ADDR"]);
    refused(&SLURM.replace("SLURM_STEP_TASKS_PER_NODE=4,3", ""), &["SLURM_STEP_TASKS_PER_NODE"]);
    refused(OPEN_MPI, &["OMPI_COMM_WORLD_SIZE=4 is set, as MPI does", "MASTER_ADDR is not", "-x MASTER_ADDR"]);
    refused("PMI_SIZE=2 PMI_RANK=0", &["MPI_LOCALNRANKS is not"]);
}

#[test]
fn limits_are_read_in_seconds() {
    let found = world(&format!("{TORCHRUN} KILN_STEP_TIMEOUT=7"));
    assert_eq!(found.limits.of(Phase::Step), Duration::from_secs(7));
    assert_eq!(found.limits.of(Phase::Validate), Duration::from_secs(1800));
    for value in ["0", "99999999", "1.5"] {
        refused(&format!("{TORCHRUN} KILN_SAVE_TIMEOUT={value}"), &["KILN_SAVE_TIMEOUT", value]);
    }
}
