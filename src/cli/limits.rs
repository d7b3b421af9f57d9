//! The limits of the shell (`ulimit`). Where one is too low for any run, a sentence stands for the abort that would follow.

use super::error::Usage;

/// Stack of the first thread. Runs overflow less.
#[cfg(unix)]
const LEAST_STACK: u64 = 512 << 10;

/// Address space that the program, its threads and a small model take.
#[cfg(unix)]
const LEAST_SPACE: u64 = 900 << 20;

/// Refuses limits under which no run can end. A file that grows beyond `ulimit -f` becomes an error of the write, not the end of the
/// process.
///
/// # Errors
/// If the stack or the address space is too small.
#[cfg(unix)]
#[inline(never)]
pub(super) fn check() -> Result<(), Usage> {
    #[expect(unsafe_code, reason = "signal is a function of C")]
    // SAFETY: the signal is ignored; no handler runs.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
    for (kind, least, what, flag) in [
        (libc::RLIMIT_STACK, LEAST_STACK, "the stack", "-s"),
        (libc::RLIMIT_AS, LEAST_SPACE, "the address space", "-v"),
    ] {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        #[expect(unsafe_code, reason = "getrlimit is a function of C")]
        // SAFETY: it writes into a structure of its own type.
        let found = unsafe { libc::getrlimit(kind, &raw mut limit) } == 0;
        if found && limit.rlim_cur < least {
            return Err(Usage(format!(
                "this shell limits {what} to {} KiB, and Kiln takes at least {}: raise it (ulimit {flag} unlimited)",
                limit.rlim_cur >> 10,
                least >> 10
            )));
        }
    }
    Ok(())
}

/// Other systems have other limits.
#[cfg(not(unix))]
pub(super) fn check() -> Result<(), Usage> {
    Ok(())
}
