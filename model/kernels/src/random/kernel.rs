//! Random words on CubeCL devices: one unit per element, which writes its Philox block to the four planes.

use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::ops::RandomOps;
use crate::calls::{self, Work};
use crate::dropout::kernel::philox;
use crate::gpu::memory::empty;

#[cube(launch_unchecked)]
fn random_words_kernel(state: &[i32], out: &mut [i32], n: u32, site: u32) {
    let element = ABSOLUTE_POS as u32;
    if element < n {
        let (w0, w1, w2, w3) = philox(element, site, state);
        out[element as usize] = i32::cast_from(w0 >> 1);
        out[(n + element) as usize] = i32::cast_from(w1 >> 1);
        out[(2 * n + element) as usize] = i32::cast_from(w2 >> 1);
        out[(3 * n + element) as usize] = i32::cast_from(w3 >> 1);
    }
}

impl RandomOps for CubeBackend {
    fn random_words(state: CubeTensor, site: u32, n: usize) -> CubeTensor {
        let _call = calls::begin(|| ("random words", vec![n], Work::moved(16.0 * n as f64)));
        let state = into_contiguous(state);
        let out = empty(&state, [4, n], DType::I32);
        // SAFETY: elements are guarded by `n`, a quarter of `out`; `state` has four words.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            random_words_kernel::launch_unchecked(
                &out.client,
                CubeCount::Static(n.div_ceil(256) as u32, 1, 1),
                CubeDim::new_1d(256),
                state.into_buffer_arg(),
                out.clone().into_buffer_arg(),
                n as u32,
                site,
            );
        }
        out
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::OnceLock;

    use super::*;
    use crate::gpu::offline::{Compiled, buffer, settings};

    pub(crate) fn offline_kernels() -> &'static [Compiled] {
        static KERNELS: OnceLock<Vec<Compiled>> = OnceLock::new();
        KERNELS.get_or_init(|| {
            let b = buffer;
            let (launch, properties, target) = settings(256);
            let kernel = random_words_kernel::RandomWordsKernel::new(launch, properties, target, b(), b(), (), ());
            vec![Compiled::new("random/words", kernel)]
        })
    }

    #[test]
    fn kernels_compile_without_a_device() {
        for kernel in offline_kernels() {
            assert!(kernel.ptx.is_some(), "{}", kernel.label);
        }
    }
}
