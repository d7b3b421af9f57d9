//! How the operators called on one thread compute.
//!
//! An operator reads the settings once, when it is called and on the thread that calls it. The backend's own threads
//! never read them, so a lazily executed operator keeps the settings it was called with. Backward passes run the
//! operators chosen by forward.
//!
//! The cache of compiled kernels is not a setting: CubeCL configures it once per process, see
//! [`compilation::keep_kernels`](crate::compilation::keep_kernels).

use std::cell::Cell;
use std::marker::PhantomData;

use burn::tensor::Device;

use crate::kernel_set::F32Products;

thread_local! {
    static CURRENT: Cell<Settings> = const {
        Cell::new(Settings {
            reference_operators: false,
            f32_products: F32Products::F32,
            fp8_products: false,
            independent_rows: false,
        })
    };
}

impl F32Products {
    /// Returns the choice of the calling thread.
    pub(crate) fn current() -> Self {
        Settings::current().f32_products
    }
}

/// How operators compute. The default: fast kernels.
///
/// ```
/// use kiln_kernels::Settings;
///
/// let fast = Settings::current();
/// {
///     let _installed = Settings { reference_operators: true, ..fast }.install();
///     // Operators called here, on this thread, run their references.
///     assert!(Settings::current().reference_operators);
/// }
/// assert_eq!(Settings::current(), fast);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Settings {
    /// Every operator runs its reference (`reference.rs` in its folder, plain Burn operations) instead of its kernel:
    /// a baseline for the results and the speed of the kernels.
    ///
    /// The backend's autodiff computes the gradients, the backend computes the products, and the arithmetic between
    /// them is f32. Dropout and masking draw the same random bits either way, and gradients are flattened by the same
    /// copy. Reference operators are slow and keep attention scores of size T x S.
    ///
    /// The kernels give the same bits in every run. On a GPU reference operators depend on the backend's autotune, and so does
    /// attention where [`attention_is_fused`](crate::attention_is_fused) returns false.
    pub reference_operators: bool,
    /// How products of f32 tensors are computed on a GPU.
    pub f32_products: F32Products,
    /// Products and their gradients take operands that are rounded to FP8, each tensor with a scale of its own: on Hopper of
    /// bf16 tensors, in FP8 arithmetic; on the CPU in f32, for tests. The projection to logits of
    /// [`linear_cross_entropy`](crate::linear_cross_entropy) stays as it is, and so do products of fewer than 16 tokens, or of
    /// widths that are not multiples of 16.
    pub fp8_products: bool,
    /// A product gives each of its rows the same bits, however many others there are. On a GPU the number of rows then chooses neither
    /// another kernel nor how a sum is split, which a few rows would gain from. On the CPU products of up to 1,024 rows do so anyway.
    pub independent_rows: bool,
}

impl Settings {
    /// Returns the settings of the calling thread.
    pub fn current() -> Self {
        CURRENT.get()
    }

    /// Applies these settings to the operators that the calling thread calls while the guard lives.
    #[must_use = "dropping the guard restores the previous settings"]
    pub fn install(self) -> SettingsGuard {
        SettingsGuard { previous: CURRENT.replace(self), thread_bound: PhantomData }
    }
}

/// Restores the thread's previous [`Settings`] when dropped.
#[derive(Debug)]
pub struct SettingsGuard {
    previous: Settings,
    /// The guard restores the settings of its own thread: it must not move to another one.
    thread_bound: PhantomData<*const ()>,
}

impl Drop for SettingsGuard {
    fn drop(&mut self) {
        CURRENT.set(self.previous);
    }
}

/// Returns whether Kiln has kernels for `device`: for the CPU through Burn's backend `flex`, and for CUDA devices. On devices of
/// other backends, every operator computes by plain Burn operations, as with [`Settings::reference_operators`].
pub fn has_kernels(device: &Device) -> bool {
    is_cpu(device) || is_cuda(device)
}

/// Returns whether `device` is the CPU through `flex`, which computes at once: reading a tensor does not wait.
pub fn is_cpu(device: &Device) -> bool {
    device.clone().inner() == Device::flex()
}

/// Returns whether `device` belongs to CUDA's backend.
pub fn is_cuda(device: &Device) -> bool {
    #[cfg(feature = "cuda")]
    return matches!(
        device.clone().inner().as_dispatch(),
        burn::backend::DispatchDevice::Cube(cubecl::Device::Cuda(_))
    );
    #[cfg(not(feature = "cuda"))]
    {
        let _ = device;
        false
    }
}

/// Returns whether operators called on this thread run their references.
pub(crate) fn reference_operators() -> bool {
    Settings::current().reference_operators
}

/// Returns whether fused operators on `device` called on this thread compute by plain Burn operations. What has no reference, such as
/// copies, masks and random numbers, asks [`has_kernels`] alone.
pub(crate) fn runs_plain(device: &Device) -> bool {
    reference_operators() || !has_kernels(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFERENCE: Settings = Settings {
        reference_operators: true,
        f32_products: F32Products::F32,
        fp8_products: false,
        independent_rows: false,
    };

    #[test]
    fn guards_nest_and_restore() {
        let before = Settings::current();
        let outer = REFERENCE.install();
        {
            let _inner = Settings { f32_products: F32Products::Tf32, ..Settings::current() }.install();
            assert_eq!(Settings::current(), Settings { f32_products: F32Products::Tf32, ..REFERENCE });
        }
        assert_eq!(Settings::current(), REFERENCE);
        drop(outer);
        assert_eq!(Settings::current(), before);
    }

    #[test]
    fn a_panic_restores_too() {
        let failed = std::panic::catch_unwind(|| {
            let _installed = REFERENCE.install();
            panic!("while installed");
        });
        assert!(failed.is_err());
        assert_eq!(Settings::current(), Settings::default());
    }

    #[test]
    fn two_threads_differ() {
        let _installed = REFERENCE.install();
        let other = std::thread::spawn(Settings::current).join().expect("no panic");
        assert_eq!((Settings::current(), other), (REFERENCE, Settings::default()));
    }
}
