//! Keeps freed memory in the process.
//!
//! Without this, glibc returns the pages of a large tensor to the system when it is freed, and the next tensor faults them in one
//! by one, cleared and on one thread. A step on the CPU frees and allocates hundreds of tensors.

/// Tells the allocator to keep what is freed. Settings of the user (`MALLOC_...`, `GLIBC_TUNABLES`) take precedence. The process
/// then holds as much memory as it ever needed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(super) fn keep_freed_memory() {
    const MIB: i32 = 1 << 20;
    let by_user = std::env::vars_os().any(|(name, _)| {
        let name = name.to_string_lossy();
        name.starts_with("MALLOC_") || name == "GLIBC_TUNABLES"
    });
    if by_user {
        return;
    }

    #[expect(unsafe_code, reason = "mallopt is a function of C")]
    // SAFETY: mallopt changes numbers of the allocator, under its lock.
    unsafe {
        // Older versions refuse more than 32 MiB.
        if libc::mallopt(libc::M_MMAP_THRESHOLD, 1024 * MIB) == 0 {
            libc::mallopt(libc::M_MMAP_THRESHOLD, 32 * MIB);
        }
        libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
        libc::mallopt(libc::M_TOP_PAD, 64 * MIB);
    }
}

/// Other allocators keep freed memory by themselves, or cannot be told.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(super) fn keep_freed_memory() {}
