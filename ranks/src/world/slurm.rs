//! The variables of Slurm's `srun`.

use super::read::{Reader, port_of};
use super::{Launcher, Secret, World, WorldError};

const REMEDY: &str = "start the processes with `srun`, and let it pass its variables on (`--export=ALL`)";

/// Whether `srun` started this process.
///
/// A batch script and an interactive shell have `SLURM_PROCID=0` and the allocation's `SLURM_NTASKS` too, but are one
/// process. `srun` alone describes the step, in `SLURM_STEP_NUM_TASKS`.
pub(super) fn is_step(read: &Reader) -> bool {
    read.has("SLURM_STEP_NUM_TASKS") && read.has("SLURM_PROCID")
}

/// Reads the world of a job step. `None`: a step of one task.
pub(super) fn world(read: &Reader) -> Result<Option<World>, WorldError> {
    let launcher = Launcher::Slurm;
    let wanted = |name: &str| read.wanted(name, launcher, "SLURM_STEP_NUM_TASKS", REMEDY);
    let size = read.size("SLURM_STEP_NUM_TASKS", wanted("SLURM_STEP_NUM_TASKS")?)?;
    if size == 1 {
        return Ok(None);
    }

    let rank = read.below("SLURM_PROCID", wanted("SLURM_PROCID")?, size, "SLURM_STEP_NUM_TASKS")?;
    let local_rank = read.below("SLURM_LOCALID", wanted("SLURM_LOCALID")?, size, "SLURM_STEP_NUM_TASKS")?;
    let local_size = local_size(read, size, local_rank)?;

    let is_one_machine = local_size == size;
    let host = match read.text("MASTER_ADDR") {
        _ if is_one_machine => "127.0.0.1".to_owned(),
        Some(host) => host,
        None => first_host_of_step(read)?,
    };
    let job = format!("{}.{}", wanted("SLURM_JOB_ID")?, read.text("SLURM_STEP_ID").unwrap_or_default());
    let port = read.port("MASTER_PORT")?.unwrap_or_else(|| port_of(job.as_bytes()));
    let restart = read.number("SLURM_RESTART_COUNT")?.unwrap_or(0) as u32;
    let secret = Secret(job.into_bytes());
    let plain = World::plain(launcher, port);
    Ok(Some(World { rank, size, local_rank, local_size, master: (host, port), restart, secret, ..plain }))
}

/// The number of tasks on this node: from the list of all nodes, else from the number per node.
fn local_size(read: &Reader, size: usize, local_rank: usize) -> Result<usize, WorldError> {
    let nodes = read.number("SLURM_STEP_NUM_NODES")?;
    if nodes == Some(1) {
        return Ok(size);
    }

    let node = read.number("SLURM_NODEID")?.unwrap_or(0);
    let listed = ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"].iter().find_map(|name| read.text(name));
    let local = match listed.and_then(|list| tasks_of(&list, node)) {
        Some(tasks) => Some(tasks),
        None => read.number("SLURM_NTASKS_PER_NODE")?.and_then(|tasks| usize::try_from(tasks).ok()),
    };
    local.filter(|tasks| (local_rank + 1..=size).contains(tasks)).ok_or_else(|| {
        read.missing("SLURM_STEP_TASKS_PER_NODE with this node's tasks", Launcher::Slurm, "SLURM_LOCALID", REMEDY)
    })
}

/// Reads the tasks of a node from a list such as `4(x2),3`: four on each of two nodes, three on the last.
fn tasks_of(list: &str, node: u64) -> Option<usize> {
    let mut first = 0u64;
    for item in list.split(',') {
        let (tasks, times) = match item.split_once("(x") {
            None => (item, 1),
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse().ok()?),
        };
        first = first.checked_add(times)?;
        if node < first {
            return tasks.trim().parse().ok();
        }
    }
    None
}

fn first_host_of_step(read: &Reader) -> Result<String, WorldError> {
    let names = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
    let Some((name, list)) = names.iter().find_map(|name| Some((name, read.text(name)?))) else {
        return Err(read.missing("SLURM_JOB_NODELIST", Launcher::Slurm, "SLURM_STEP_NUM_TASKS", REMEDY));
    };
    first_host(&list).ok_or_else(|| WorldError::Value {
        variable: (*name).to_owned(),
        value: list,
        wanted: "a list of hosts such as node[03-07,9]; set MASTER_ADDR to the host of rank 0".into(),
    })
}

/// Returns the first host of a list such as `node[03-07,9],login1`: here `node03`.
fn first_host(list: &str) -> Option<String> {
    let (mut host, mut rest) = (String::new(), list.trim());
    loop {
        let end = rest.find([',', '[']).unwrap_or(rest.len());
        host.push_str(&rest[..end]);
        if !rest[end..].starts_with('[') {
            break;
        }

        let (range, after) = rest[end + 1..].split_once(']')?;
        let first = range.split([',', '-']).next()?;
        if first.is_empty() || !first.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        host.push_str(first);
        rest = after;
    }

    let is_name = |c: char| c.is_ascii_alphanumeric() || ".-_:".contains(c);
    (!host.is_empty() && host.chars().all(is_name)).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_of_every_form_of_list() {
        for (list, first) in [
            ("tux", "tux"),
            ("tux1,tux2", "tux1"),
            ("node[03-07,9]", "node03"),
            ("node[9,03-07],gpu1", "node9"),
            ("rack[0-1]node[00-15].local", "rack0node00.local"),
            ("gnode[10,20,25,37]", "gnode10"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(first), "{list}");
        }
        for list in ["", "node[", "node[]", "node[a-b]", "[,]", "a b", ",node"] {
            assert_eq!(first_host(list), None, "{list}");
        }
    }

    #[test]
    fn the_tasks_of_each_node_are_found() {
        for (node, tasks) in [(0, Some(4)), (1, Some(4)), (2, Some(3)), (3, Some(1)), (4, None)] {
            assert_eq!(tasks_of("4(x2),3,1", node), tasks, "node {node}");
        }
        for list in ["", "x", "4(x", "4(xy)"] {
            assert_eq!(tasks_of(list, 0), None, "{list}");
        }
        assert_eq!(tasks_of("1(x18446744073709551615),1(x2)", u64::MAX), None, "no overflow");
    }
}
