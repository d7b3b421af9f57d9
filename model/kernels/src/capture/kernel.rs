//! Overwriting a tensor on CubeCL devices.

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::ops::OverwriteOps;

const UNITS: u32 = 256;

#[cube(launch_unchecked)]
fn copy<E: Int>(source: &[E], target: &mut [E], n: u32, #[define(E)] _dtype: ElemType) {
    let at = ABSOLUTE_POS;
    if at < n as usize {
        target[at] = source[at];
    }
}

impl OverwriteOps for CubeBackend {
    fn overwrite(target: CubeTensor, source: CubeTensor) -> CubeTensor {
        assert!(target.is_contiguous(), "only a contiguous tensor can be overwritten");
        let (source, n) = (into_contiguous(source), target.meta.shape().num_elements());
        // SAFETY: both have `n` elements; threads beyond do nothing.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            copy::launch_unchecked(
                &target.client,
                CubeCount::Static(n.div_ceil(UNITS as usize) as u32, 1, 1),
                CubeDim::new_1d(UNITS),
                source.into_buffer_arg(),
                target.clone().into_buffer_arg(),
                n as u32,
                dtype_to_storage_type(target.dtype),
            );
        }
        target
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::OnceLock;

    use burn::tensor::DType;

    use super::*;
    use crate::gpu::offline::{Compiled, buffer, settings};

    pub(crate) fn offline_kernels() -> &'static [Compiled] {
        static KERNELS: OnceLock<Vec<Compiled>> = OnceLock::new();
        KERNELS.get_or_init(|| {
            let (b, dtype) = (buffer, dtype_to_storage_type(DType::I32));
            let (launch, properties, target) = settings(UNITS);
            let kernel = copy::Copy::new(launch, properties, target, b(), b(), (), dtype);
            vec![Compiled::new("capture/overwrite/i32", kernel)]
        })
    }

    #[test]
    fn kernels_compile_without_a_device() {
        for kernel in offline_kernels() {
            assert!(kernel.ptx.is_some(), "{}", kernel.label);
        }
    }
}
