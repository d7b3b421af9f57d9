//! Compiles the kernels of some work together, before the work runs.

use burn::tensor::Device;
use thiserror::Error;

use super::KernelCount;

/// Why kernels could not be compiled ahead. They are then compiled when they are launched.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AheadError {
    /// The device failed, before or after the work was gone through.
    #[error("the device failed while {what}: {reason}")]
    Device {
        /// What was being done.
        what: &'static str,
        /// The first line of the failure.
        reason: String,
    },
    /// The work panicked without its results. What it had launched until then has been compiled.
    #[error("the work needs results that are not computed while its kernels are collected: {0}")]
    Panicked(String),
}

/// Compiles the kernels that `work` launches on `device`, on all cores that this process may use, and loads them. Returns
/// how many were compiled and how many came from the cache of [`keep_kernels`](super::keep_kernels).
///
/// `work` is called, but its launches are discarded: it must not depend on what it computes, and every tensor that it
/// reads has arbitrary contents. It ends with a read of each result, or the backend's queue drops the launches behind it.
/// Weights, moments and random streams stay as they are. While kernels are compiled, `show` gets the number that is done
/// and the number of all every few hundredths of a second.
///
/// No other thread of the process may use a device during the call, because its launches would be discarded, too. A
/// kernel that does not compile is reported when it is launched. On a backend without a compiler `work` is not called.
///
/// # Errors
/// If the device fails or `work` panics. Either leaves the device as it was.
pub fn compile_ahead(
    device: &Device,
    work: impl FnOnce(),
    show: impl FnMut(usize, usize),
) -> Result<KernelCount, AheadError> {
    #[cfg(feature = "cuda")]
    {
        cuda::compile(&device.clone().inner(), work, show)
    }
    #[cfg(not(feature = "cuda"))]
    {
        let _ = (device, work, show);
        Ok(KernelCount::default())
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use std::any::Any;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;
    use std::time::Duration;

    use burn::backend::DispatchDevice;
    use burn::tensor::Device;
    use cubecl::cuda::CudaRuntime;
    use cubecl::device_handle::DeviceHandle;
    use cubecl::server::Server as _;
    use cubecl_server::runtime::Runtime;

    use super::super::{Counter, KernelCount};
    use super::AheadError;
    use crate::device_queue::programs;

    type Server = <CudaRuntime as Runtime>::Server;

    /// Time between two reports of progress.
    const PULSE: Duration = Duration::from_millis(50);

    pub(super) fn compile(
        device: &Device,
        work: impl FnOnce(),
        show: impl FnMut(usize, usize),
    ) -> Result<KernelCount, AheadError> {
        let DispatchDevice::Cube(cubecl::Device::Cuda(cuda_device)) = device.as_dispatch() else {
            return Ok(KernelCount::default());
        };
        let server = DeviceHandle::<Server>::new(cubecl::Device::Cuda(cuda_device.clone()).to_id());
        let counter = Counter::started();
        let before = counter.count();
        let sync = |what| device.sync().map_err(|error| failed(what, error));

        // Operations that wait in the backend's queue are not part of the work: they must run.
        sync("finishing earlier work")?;
        let settled = counter.statistics().compilation.settled();
        let discarding = counter.discard();
        let ran = catch_unwind(AssertUnwindSafe(work));
        let drained = sync("collecting kernels");
        drop(discarding);
        drained?;

        compile_queue(&server, counter, settled, show)?;
        programs::await_collected();
        // The work's memory was promised and never mapped. What a later step reserves should fail when it is reserved.
        device.memory_cleanup();
        sync("giving back memory")?;
        ran.map_err(|panic| AheadError::Panicked(text(&*panic)))?;

        Ok(counter.count().since(before))
    }

    /// Compiles all queued kernels, of which `settled` is the number before the first.
    fn compile_queue(
        server: &DeviceHandle<Server>,
        counter: &Counter,
        settled: usize,
        mut show: impl FnMut(usize, usize),
    ) -> Result<(), AheadError> {
        let cores = Cores::of_this_thread();
        thread::scope(|scope| {
            let compiling = scope.spawn(|| {
                server.submit_blocking(|server: &mut Server| {
                    // Compiling threads inherit the cores of the device's thread, which may share one cache.
                    let kept = Cores::of_this_thread();
                    cores.take();
                    server.compile_queued();
                    kept.take();
                })
            });

            let mut report = || {
                let kernels = counter.statistics().compilation;
                show(kernels.settled().saturating_sub(settled), kernels.registered.saturating_sub(settled));
            };
            while !compiling.is_finished() {
                report();
                thread::sleep(PULSE);
            }
            report();
            match compiling.join() {
                Ok(done) => done.map_err(|error| failed("compiling kernels", error)),
                Err(panic) => Err(failed("compiling kernels", text(&*panic))),
            }
        })
    }

    /// The cores that a thread may run on.
    #[cfg(target_os = "linux")]
    struct Cores(Option<rustix::thread::CpuSet>);

    #[cfg(target_os = "linux")]
    impl Cores {
        fn of_this_thread() -> Self {
            Self(rustix::thread::sched_getaffinity(None).ok())
        }

        /// Moves the calling thread to them. If the system refuses, the thread stays where it is and compiles there.
        fn take(&self) {
            if let Some(cores) = &self.0 {
                let _ = rustix::thread::sched_setaffinity(None, cores);
            }
        }
    }

    #[cfg(not(target_os = "linux"))]
    struct Cores;

    #[cfg(not(target_os = "linux"))]
    impl Cores {
        fn of_this_thread() -> Self {
            Self
        }

        fn take(&self) {}
    }

    fn failed(what: &'static str, error: impl std::fmt::Debug) -> AheadError {
        let text = format!("{error:?}");
        AheadError::Device { what, reason: text.lines().next().unwrap_or_default().to_owned() }
    }

    /// Returns the first line of a panic's message.
    fn text(panic: &(dyn Any + Send)) -> String {
        let message = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        message.and_then(|message| message.lines().next()).unwrap_or("a panic without a message").to_owned()
    }
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "cuda")]
    use burn::tensor::Tensor;

    use super::*;

    #[test]
    fn the_cpu_compiles_nothing_and_does_not_call_the_work() {
        let done = compile_ahead(&Device::flex(), || panic!("called"), |_, _| panic!("shown"));
        assert_eq!(done, Ok(KernelCount::default()));
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn discarded_work_is_compiled_and_changes_nothing() {
        let device = match crate::testing::cuda_alone() {
            Ok(device) => device,
            Err(reason) => return eprintln!("skipped on CUDA: {reason}"),
        };
        let ones = Tensor::<2>::ones([48, 80], &device);
        let work = |ones: Tensor<2>| (ones.clone() * 3.0 - ones.exp()).sum_dim(0).sum();
        let gone = compile_ahead(&device, || drop(work(ones.clone()).try_into_data()), |_, _| ()).expect("a device");
        assert!(gone.compiled + gone.loaded > 0, "{gone:?}");

        let sum: f32 = work(ones).try_into_scalar().expect("computed");
        let wanted = 48.0 * 80.0 * (3.0 - std::f32::consts::E);
        assert!((sum - wanted).abs() < 1.0, "{sum} instead of {wanted}");

        let failed = compile_ahead(&device, || panic!("needs a number\nbacktrace"), |_, _| ());
        assert_eq!(failed, Err(AheadError::Panicked("needs a number".into())));
        let sum: f32 = Tensor::<1>::ones([8], &device).sum().try_into_scalar().expect("computed");
        assert_eq!(sum, 8.0, "launches run again");
    }
}
