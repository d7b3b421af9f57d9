//! Which kernels compute matrix products and attention, and how products of f32 are rounded.

use std::env;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// Instructions that kernels of matrix products and attention are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelSet {
    /// TMA, bulk copies and warpgroup products: compute capability 9.0.
    Hopper,
    /// `cp.async`, `ldmatrix` and `mma.sync`: compute capability 8.0 and later.
    Ampere,
}

impl fmt::Display for KernelSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hopper => "Hopper",
            Self::Ampere => "Ampere",
        })
    }
}

/// How Kiln's kernels multiply f32 numbers on a GPU. Sums are f32 either way, and so is everything between products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum F32Products {
    /// With the accuracy of f32.
    #[default]
    F32,
    /// Rounded to TF32, 11 significant bits, for the tensor cores. Faster, and about as accurate as f16 with the range
    /// of f32.
    Tf32,
}

impl F32Products {
    /// Lets the backend's own products, which a model may call too, round f32 numbers to TF32, or forbids it. Unless
    /// it is forbidden, the backend's autotune may choose TF32.
    ///
    /// The backend reads its configuration once per process, before its first product: later calls have no effect.
    pub fn install_in_backend(self) {
        #[cfg(feature = "cuda")]
        {
            use cubek::config::{CubekConfig, RuntimeConfig};

            let mut config = CubekConfig::from_current_dir().override_from_env();
            config.matmul.allow_tf32 &= self == Self::Tf32;
            CubekConfig::try_set(config);
        }
    }
}

/// The kernels that this process may use, to measure and test older ones on a newer GPU.
///
/// The environment variable `KILN_KERNELS` (`ampere`, `stock`) is the choice of a process that has made none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum KernelChoice {
    /// The newest that the device has the instructions for.
    #[default]
    Newest,
    /// At most those for Ampere.
    Ampere,
    /// None: the backend computes products and attention.
    Stock,
}

static CHOICE: AtomicU8 = AtomicU8::new(KernelChoice::Newest as u8);

impl KernelChoice {
    /// Applies the choice to all operators that this process calls from now on.
    pub fn install(self) {
        CHOICE.store(self as u8, Ordering::Relaxed);
    }

    /// Returns the choice of this process.
    pub fn current() -> Self {
        const AMPERE: u8 = KernelChoice::Ampere as u8;
        const STOCK: u8 = KernelChoice::Stock as u8;
        static VARIABLE: OnceLock<KernelChoice> = OnceLock::new();
        match CHOICE.load(Ordering::Relaxed) {
            AMPERE => Self::Ampere,
            STOCK => Self::Stock,
            _ => *VARIABLE.get_or_init(|| match env::var("KILN_KERNELS").as_deref() {
                Ok("ampere") => Self::Ampere,
                Ok("stock") => Self::Stock,
                _ => Self::Newest,
            }),
        }
    }
}
