//! Work in a child process with limits of its own.
//!
//! A template is a program of a stranger. Its fuel bounds what it computes, but a value may be endless to print (a list that is
//! repeated in lists), or nested beyond the stack. Whatever happens to the child, its parent only reads how it ended.

use std::io::{self, Read};

/// What a child process may use.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Bytes of memory, besides what its parent has.
    pub(super) memory: u64,
    /// Milliseconds of a processor.
    pub(super) millis: u64,
}

/// Why a child process ended before its work was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Memory,
    Time,
    Stack,
    Other,
}

/// Does a list of tasks, each of which returns bytes. Returns the bytes of those that were done, and why the next one was not.
///
/// # Errors
/// If no process can be made.
#[cfg(unix)]
pub(super) fn apart(
    limits: Limits,
    n_tasks: usize,
    task: impl Fn(usize) -> Vec<u8>,
) -> io::Result<(Vec<Vec<u8>>, Option<End>)> {
    let (mut from_child, child) = unix::fork(limits, |to_parent| {
        unix::limit(limits.memory)?;
        (0..n_tasks).try_for_each(|i| write_frame(to_parent, &task(i)))
    })?;
    let done: Vec<Vec<u8>> = (0..n_tasks).map_while(|_| read_frame(&mut from_child).ok()).collect();
    drop(from_child);
    let end = child.wait()?;
    let is_done = done.len() == n_tasks;
    Ok((done, (!is_done).then_some(end)))
}

/// Without child processes, only the fuel of a template is a limit.
#[cfg(not(unix))]
pub(super) fn apart(
    _: Limits,
    n_tasks: usize,
    task: impl Fn(usize) -> Vec<u8>,
) -> io::Result<(Vec<Vec<u8>>, Option<End>)> {
    Ok(((0..n_tasks).map(task).collect(), None))
}

#[cfg(unix)]
fn write_frame(to: &mut impl io::Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(&(bytes.len() as u64).to_le_bytes())?;
    to.write_all(bytes)
}

#[cfg(unix)]
fn read_frame(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut n_bytes = [0; 8];
    from.read_exact(&mut n_bytes)?;
    let n_bytes = u64::from_le_bytes(n_bytes);
    let mut bytes = Vec::new();
    from.take(n_bytes).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == n_bytes { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(unix)]
mod unix {
    use std::fs;
    use std::io::{self, BufReader, PipeReader, PipeWriter};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::{Mutex, PoisonError};

    use rustix::process::{Pid, Resource, Rlimit, WaitOptions, WaitStatus, getrlimit, setrlimit, waitpid};

    use super::{End, Limits};

    /// Held while the end of a pipe that a child writes to is open here, so that no other child gets it.
    static FORKING: Mutex<()> = Mutex::new(());
    /// Seconds of the clock after which a child is ended that only waits: for a lock that another thread of its parent held,
    /// such as the one under which a panic is printed.
    fn secs_of_clock(limits: Limits) -> u32 {
        u32::try_from(limits.millis / 100 + 10).unwrap_or(u32::MAX)
    }

    /// The timer that ends a child by `SIGPROF`.
    fn time_of_processor(limits: Limits) -> libc::itimerval {
        let tv_sec = libc::time_t::try_from(limits.millis / 1000).unwrap_or(libc::time_t::MAX);
        let value = libc::timeval { tv_sec, tv_usec: (limits.millis % 1000) as libc::suseconds_t * 1000 };
        libc::itimerval { it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 }, it_value: value }
    }

    pub(super) struct Child(Pid);

    /// Lets a child process do `work`, which writes to a pipe, and returns the other end of the pipe.
    #[expect(unsafe_code, reason = "no safe function forks; see SAFETY")]
    pub(super) fn fork(
        limits: Limits,
        work: impl FnOnce(&mut PipeWriter) -> io::Result<()>,
    ) -> io::Result<(BufReader<PipeReader>, Child)> {
        let _alone = FORKING.lock().unwrap_or_else(PoisonError::into_inner);
        let (reader, mut writer) = io::pipe()?;
        // SAFETY: the child has only this thread. It calls the allocator, whose locks the C library keeps usable across `fork`,
        // never returns from this block, and is ended by the alarm if it waits for another lock.
        let child = unsafe { libc::fork() };
        if child == 0 {
            limit_time(limits);
            let done = catch_unwind(AssertUnwindSafe(|| work(&mut writer)));
            // SAFETY: `_exit` runs no code of the parent.
            unsafe { libc::_exit(i32::from(!matches!(done, Ok(Ok(()))))) }
        }

        if child < 0 {
            return Err(io::Error::last_os_error());
        }
        let child = Pid::from_raw(child).expect("a process has a number");
        Ok((BufReader::new(reader), Child(child)))
    }

    /// Lets signals end this process, one of them after its time, and takes its standard error from it.
    #[expect(unsafe_code, reason = "no safe function sets these signals; see SAFETY")]
    fn limit_time(limits: Limits) {
        // SAFETY: each call is defined in any process, also in one that was forked.
        unsafe {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
            libc::signal(libc::SIGPROF, libc::SIG_DFL);
            libc::setitimer(libc::ITIMER_PROF, &time_of_processor(limits), std::ptr::null_mut());
            libc::alarm(secs_of_clock(limits));
            libc::close(libc::STDERR_FILENO);
        }
    }

    /// Limits the memory of this process.
    pub(super) fn limit(memory: u64) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        lower(Resource::Core, 0)?;
        lower(Resource::As, n_bytes_of_memory().saturating_add(memory))
    }

    fn lower(resource: Resource, to: u64) -> io::Result<()> {
        let Rlimit { current, maximum } = getrlimit(resource);
        let lower = |limit: Option<u64>| Some(limit.map_or(to, |limit| limit.min(to)));
        Ok(setrlimit(resource, Rlimit { current: lower(current), maximum: lower(maximum) })?)
    }

    /// Bytes of addresses that this process uses. Without a limit where the system does not say.
    fn n_bytes_of_memory() -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kib.map_or(u64::MAX / 2, |kib| kib << 10)
    }

    impl Child {
        /// Waits for the end of the process, and says what it means where the work was not done.
        pub(super) fn wait(self) -> io::Result<End> {
            let status: WaitStatus = loop {
                match waitpid(Some(self.0), WaitOptions::empty()) {
                    Ok(Some((_, status))) => break status,
                    Ok(None) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            };
            Ok(match status.terminating_signal() {
                Some(libc::SIGABRT) => End::Memory,
                Some(libc::SIGPROF | libc::SIGKILL | libc::SIGALRM) => End::Time,
                Some(libc::SIGSEGV | libc::SIGBUS) => End::Stack,
                _ => End::Other,
            })
        }
    }
}
