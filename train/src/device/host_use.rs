//! What the process and the machine did between two moments: CPU time, storage, network and swapping.
//!
//! Linux keeps counters in `/proc`. A counter that cannot be read, there or on another system, is absent, which is not an error.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use kiln_data::files::read_at_most;

use crate::metrics::HostUse;

/// Most bytes of a file of counters. The longest one, `/proc/stat`, has a number per CPU and interrupt.
const MOST_BYTES: u64 = 4 << 20;
/// Fields of the line `cpu` that add up to the time of all CPUs: `user` to `steal`. The fields after them are parts of `user`.
const CPU_STATES: usize = 8;
/// The fields `idle` and `iowait` among them.
const IDLE_STATES: [usize; 2] = [3, 4];
/// The field `utime` of `/proc/self/stat`, counted from the one after the name; `stime` follows.
const USER_TIME: usize = 11;

/// Counters of the kernel at one moment. Pairs are what came in and what went out.
#[derive(Debug, Clone)]
pub(super) struct Counters {
    at: Instant,
    machine: Option<CpuTime>,
    /// Ticks that the threads of the process ran, those included that have ended.
    process_ticks: Option<u64>,
    /// Bytes from and to storage.
    storage: Option<[u64; 2]>,
    /// Bytes of each network interface.
    network: Option<BTreeMap<String, [u64; 2]>>,
    /// Pages from and to swap.
    swap: Option<[u64; 2]>,
}

/// The time of all CPUs together, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CpuTime {
    cpus: u64,
    all: u64,
    busy: u64,
}

impl Counters {
    /// Reads the counters in `proc` and `sys` of `root`.
    pub(super) fn read(root: &Path) -> Self {
        let text = |path: &str| String::from_utf8(read_at_most(&root.join(path), MOST_BYTES).ok()?).ok();
        let is_card = |name: &str| root.join("sys/class/net").join(name).join("device").exists();

        Self {
            at: Instant::now(),
            machine: text("proc/stat").and_then(|stat| cpu_time(&stat)),
            process_ticks: text("proc/self/stat").and_then(|stat| process_ticks(&stat)),
            storage: text("proc/self/io").and_then(|io| pair(&io, ["read_bytes:", "write_bytes:"])),
            network: text("proc/net/dev").map(|dev| interfaces(&dev, is_card)),
            swap: text("proc/vmstat").and_then(|vmstat| pair(&vmstat, ["pswpin", "pswpout"])),
        }
    }

    /// Returns what was done since `earlier`; `None` if no time has passed or no counter is there.
    pub(super) fn since(&self, earlier: &Self) -> Option<HostUse> {
        let secs = self.at.duration_since(earlier.at).as_secs_f64();
        if secs <= 0.0 {
            return None;
        }
        let rates = |now: Option<[u64; 2]>, before: Option<[u64; 2]>| {
            let (now, before) = now.zip(before)?;
            Some([now[0].checked_sub(before[0])? as f64 / secs, now[1].checked_sub(before[1])? as f64 / secs])
        };

        let machine = self.machine.zip(earlier.machine);
        let all = machine.and_then(|(now, before)| now.all.checked_sub(before.all)).filter(|ticks| *ticks > 0);
        let busy = machine.and_then(|(now, before)| now.busy.checked_sub(before.busy));
        let process = self.process_ticks.zip(earlier.process_ticks);
        let process = process.and_then(|(now, before)| now.checked_sub(before));
        // The files are read one after the other, so that a busy process can seem to use a little more than there is.
        let share = |ticks: Option<u64>| Some((ticks? as f64 / all? as f64).min(1.0));

        let storage = rates(self.storage, earlier.storage);
        let network = self.network.as_ref().zip(earlier.network.as_ref());
        let network = network.and_then(|(now, before)| {
            // Only interfaces that were there before: the counters of a new one began at another moment.
            let same = now.iter().filter_map(|(name, now)| Some((*now, *before.get(name)?)));
            let (now, before): (Vec<[u64; 2]>, Vec<[u64; 2]>) = same.unzip();
            let sum = |all: &[[u64; 2]]| all.iter().fold([0; 2], |sum, bytes| [sum[0] + bytes[0], sum[1] + bytes[1]]);
            (!now.is_empty()).then(|| rates(Some(sum(&now)), Some(sum(&before)))).flatten()
        });
        let swap = rates(self.swap, earlier.swap);

        let found = HostUse {
            cpus: self.machine.map(|machine| machine.cpus),
            process_cpu_share: share(process),
            machine_cpu_share: share(busy),
            read_bytes_per_sec: storage.map(|[read, _]| read),
            written_bytes_per_sec: storage.map(|[_, written]| written),
            received_bytes_per_sec: network.map(|[received, _]| received),
            sent_bytes_per_sec: network.map(|[_, sent]| sent),
            swapin_pages_per_sec: swap.map(|[pages, _]| pages),
            swapout_pages_per_sec: swap.map(|[_, pages]| pages),
        };
        (found != HostUse::default()).then_some(found)
    }
}

/// Reads `cpu  3039470 1337234 ...`, and counts the lines `cpu0`, `cpu1` and so on.
fn cpu_time(stat: &str) -> Option<CpuTime> {
    let states = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let states: Vec<u64> = states.split_whitespace().take(CPU_STATES).map_while(|ticks| ticks.parse().ok()).collect();
    if states.is_empty() {
        return None;
    }
    let idle: u64 = IDLE_STATES.iter().filter_map(|state| states.get(*state)).sum();
    let all: u64 = states.iter().sum();
    let is_cpu =
        |line: &&str| line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    Some(CpuTime { cpus: stat.lines().filter(is_cpu).count() as u64, all, busy: all - idle })
}

/// Reads the time in user and system mode after the name, which may contain spaces and brackets.
fn process_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(USER_TIME);
    Some(times.next()?.parse::<u64>().ok()? + times.next()?.parse::<u64>().ok()?)
}

/// Reads the numbers of the lines with these names.
fn pair(text: &str, names: [&str; 2]) -> Option<[u64; 2]> {
    let number = |name: &str| {
        let mut words = text.lines().map(str::split_whitespace).find(|words| words.clone().next() == Some(name))?;
        words.nth(1)?.parse::<u64>().ok()
    };
    Some([number(names[0])?, number(names[1])?])
}

/// Reads the bytes that each card received and sent. Without a card, as in a container, all interfaces but the loopback count.
/// A bridge or a bond would count the bytes of its cards again.
fn interfaces(dev: &str, is_card: impl Fn(&str) -> bool) -> BTreeMap<String, [u64; 2]> {
    let of_line = |line: &str| {
        let (name, numbers) = line.rsplit_once(':')?;
        let numbers: Vec<&str> = numbers.split_whitespace().collect();
        Some((name.trim().to_owned(), [numbers.first()?.parse().ok()?, numbers.get(8)?.parse().ok()?]))
    };
    let mut found: BTreeMap<String, [u64; 2]> = dev.lines().filter_map(of_line).collect();
    found.remove("lo");
    if found.keys().any(|name| is_card(name)) {
        found.retain(|name, _| is_card(name));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    const STAT: &str = "cpu  100 0 100 600 100 0 50 50 7 7\ncpu0 1 1 1 1\ncpu1 1 1 1 1\nintr 5 6\ncpuset 3\n";
    const LATER_STAT: &str = "cpu  200 0 150 750 150 0 50 100 9 9\ncpu0 2 2 2 2\ncpu1 2 2 2 2\n";
    const IO: &str = "rchar: 9\nread_bytes: 1000\nwrite_bytes: 70\ncancelled_write_bytes: 5\n";
    const LATER_IO: &str = "rchar: 9\nread_bytes: 9000\nwrite_bytes: 90\ncancelled_write_bytes: 5\n";

    fn process(user: u64, system: u64) -> String {
        format!("42 (a b) c)) R 1 2 3 4 5 6 7 8 9 10 {user} {system} 15 16\n")
    }

    fn dev(lines: &[(&str, u64, u64)]) -> String {
        let of_line = |(name, received, sent): &(&str, u64, u64)| {
            format!("{name:>6}: {received} 1 0 0 0 0 0 0 {sent} 2 0 0 0 0 0 0\n")
        };
        let lines: String = lines.iter().map(of_line).collect();
        format!("Inter-|   Receive  |  Transmit\n face |bytes packets|bytes packets\n{lines}")
    }

    fn vmstat(pages_in: u64, pages_out: u64) -> String {
        format!("nr_free_pages 7\npswpin {pages_in}\npswpout {pages_out}\npgfault 9\n")
    }

    fn written(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, text).expect("written");
    }

    /// Returns the counters before and after two seconds in which `change` rewrote files.
    fn two(root: &Path, change: impl FnOnce()) -> [Counters; 2] {
        let before = Counters::read(root);
        change();
        let after = Counters::read(root);
        [before.clone(), Counters { at: before.at + Duration::from_secs(2), ..after }]
    }

    #[test]
    fn rates_are_what_the_counters_grew_by() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let write = |path: &str, text: &str| written(root, path, text);
        write("proc/stat", STAT);
        write("proc/self/stat", &process(10, 5));
        write("proc/self/io", IO);
        write("proc/net/dev", &dev(&[("lo", 5, 5), ("eth0", 100, 10), ("br0", 100, 10)]));
        write("proc/vmstat", &vmstat(3, 0));
        write("sys/class/net/eth0/device/vendor", "");

        let [before, after] = two(root, || {
            write("proc/stat", LATER_STAT);
            write("proc/self/stat", &process(60, 55));
            write("proc/self/io", LATER_IO);
            write("proc/net/dev", &dev(&[("lo", 9000, 9000), ("eth0", 2100, 20), ("br0", 2100, 20)]));
            write("proc/vmstat", &vmstat(3, 400));
        });
        let wanted = HostUse {
            cpus: Some(2),
            // 100 of 400 ticks, and 200 that were neither idle nor waiting.
            process_cpu_share: Some(0.25),
            machine_cpu_share: Some(0.5),
            read_bytes_per_sec: Some(4000.0),
            written_bytes_per_sec: Some(10.0),
            received_bytes_per_sec: Some(1000.0),
            sent_bytes_per_sec: Some(5.0),
            swapin_pages_per_sec: Some(0.0),
            swapout_pages_per_sec: Some(200.0),
        };
        assert_eq!(after.since(&before), Some(wanted));
        assert_eq!(after.since(&after), None, "no time has passed");
    }

    #[test]
    fn a_file_that_is_absent_or_cannot_be_read_costs_its_own_values_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let [before, after] = two(root, || ());
        assert_eq!(after.since(&before), None, "nothing is there");

        written(root, "proc/vmstat", &vmstat(1, 1));
        // Not numbers, not lines, no text, and a folder where a file belongs.
        written(root, "proc/stat", "cpu  x y\n");
        written(root, "proc/self/stat", "42 (a) R 1\n");
        written(root, "proc/net/dev", "eth0: many\n");
        fs::create_dir_all(root.join("proc/self/io")).expect("a folder");
        let [before, after] = two(root, || written(root, "proc/vmstat", &vmstat(3, 1)));
        let found = after.since(&before).expect("swapping");
        let swap = HostUse { swapin_pages_per_sec: Some(1.0), swapout_pages_per_sec: Some(0.0), ..found };
        assert_eq!(found, swap);
        assert_eq!((found.process_cpu_share, found.machine_cpu_share, found.read_bytes_per_sec), (None, None, None));
        assert_eq!((found.received_bytes_per_sec, found.sent_bytes_per_sec), (None, None));

        fs::write(root.join("proc/vmstat"), b"\xff\xfe").expect("written");
        let [before, after] = two(root, || ());
        assert!(after.since(&before).is_none_or(|found| found.swapin_pages_per_sec.is_none()));
    }

    #[test]
    fn counters_that_begin_anew_and_interfaces_that_come_and_go_make_no_rates() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        written(root, "proc/vmstat", &vmstat(5, 5));
        written(root, "proc/net/dev", &dev(&[("eth0", 100, 10), ("veth1", 7, 7)]));
        let [before, after] = two(root, || {
            written(root, "proc/vmstat", &vmstat(0, 0));
            written(root, "proc/net/dev", &dev(&[("eth0", 300, 10), ("veth2", 1 << 40, 1 << 40)]));
        });
        let found = after.since(&before).expect("the interface that stayed");
        assert_eq!((found.received_bytes_per_sec, found.sent_bytes_per_sec), (Some(100.0), Some(0.0)));
        assert_eq!((found.swapin_pages_per_sec, found.swapout_pages_per_sec), (None, None));
    }

    #[test]
    fn a_process_that_computes_is_seen_on_linux() {
        let before = Counters::read(Path::new("/"));
        let (started, mut sum) = (Instant::now(), 0_u64);
        while started.elapsed() < Duration::from_millis(100) {
            sum = std::hint::black_box(sum.wrapping_mul(3) + 1);
        }
        let found = Counters::read(Path::new("/")).since(&before);
        if cfg!(target_os = "linux") {
            let found = found.expect("Linux has counters");
            let share = found.process_cpu_share.expect("of CPU time");
            assert!(share > 0.0 && share <= 1.0 && found.cpus.is_some_and(|cpus| cpus > 0), "{found:?}");
        }
    }
}
