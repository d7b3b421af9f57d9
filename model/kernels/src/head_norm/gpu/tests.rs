use std::sync::OnceLock;

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;

use super::UNITS;
use super::backward::norm_heads_backward;
use super::forward::norm_heads_forward;
use super::heads::{HeadsConfig, ScalesCompilationArg};
use crate::gpu::offline::{Compiled, buffer, settings};

pub(crate) fn offline_kernels() -> &'static [Compiled] {
    static KERNELS: OnceLock<Vec<Compiled>> = OnceLock::new();
    KERNELS.get_or_init(|| {
        let config = |vectors| HeadsConfig { vectors, n_query_heads: 8, n_key_heads: 4, n_heads: 16 };
        let mut kernels = Vec::new();
        for (name, dtype, width, vectors) in
            [("128-bf16", DType::BF16, 8, 16), ("96-f16", DType::F16, 8, 12), ("256-f32", DType::F32, 4, 64)]
        {
            let (b, dtype) = (buffer, dtype_to_storage_type(dtype));
            let scales = || ScalesCompilationArg { query: b(), key: b() };
            let (launch, properties, target) = settings(UNITS);
            #[rustfmt::skip]
            let forward = norm_heads_forward::NormHeadsForward::new(
                launch, properties, target, b(), scales(), b(), (), (), width, config(vectors), dtype,
            );
            kernels.push(Compiled::new(format!("head-norm/forward/{name}"), forward));

            let (launch, properties, target) = settings(UNITS);
            #[rustfmt::skip]
            let backward = norm_heads_backward::NormHeadsBackward::new(
                launch, properties, target, b(), scales(), b(), b(), b(), (), (), width, config(vectors), dtype,
            );
            kernels.push(Compiled::new(format!("head-norm/backward/{name}"), backward));
        }
        kernels
    })
}

#[test]
fn kernels_compile_without_a_device() {
    for kernel in offline_kernels() {
        assert!(kernel.ptx.is_some(), "{}", kernel.label);
    }
}
