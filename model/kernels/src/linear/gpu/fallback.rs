//! Products that the kernel does not support, computed by the backend's own matrix product.

use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubek::matmul::definition::{MatmulElems, MatmulGlobalElems};
use cubek::matmul::multi_level::Strategy;
use cubek::std::InputBinding;

use super::super::Layout;

/// Returns the product that `layout` names, in `out`.
pub(super) fn fallback(a: CubeTensor, b: CubeTensor, layout: Layout, out: CubeTensor) -> CubeTensor {
    let (a, b) = (into_contiguous(a), into_contiguous(b));
    let transpose = |x: CubeTensor| burn_cubecl::ops::permute(x, &[1, 0]);
    match layout {
        Layout::NN => backend_product(a, b, out),
        Layout::NT => backend_product(a, transpose(b), out),
        Layout::TN => backend_product(transpose(a), b, out),
    }
}

/// Returns `a · b`, with the first strategy that accepts the operands. The backend's autotune may prefer a TMA candidate whose
/// launch fails without an error, and its default in f32 rounds to TF32.
pub(super) fn backend_product(a: CubeTensor, b: CubeTensor, out: CubeTensor) -> CubeTensor {
    if a.meta.shape().iter().chain(b.meta.shape().iter()).any(|&size| size == 0) {
        return burn_cubecl::ops::numeric::zeros_client(
            out.client.clone(),
            out.device.clone(),
            out.meta.shape().clone(),
            out.dtype,
        );
    }

    let candidates = match a.dtype {
        DType::F32 => vec![Strategy::SimpleUnit(Default::default()), Strategy::Naive],
        _ => vec![
            Strategy::SimpleCyclicCmma(Default::default()),
            Strategy::SimpleUnit(Default::default()),
            Strategy::Naive,
        ],
    };
    let elem = dtype_to_storage_type(a.dtype);
    let mut refused = Vec::new();
    for strategy in candidates {
        let mut elems = MatmulElems::from_globals(&MatmulGlobalElems { lhs: elem, rhs: elem, out: elem });
        let launched = cubek::matmul::launch::launch_ref(
            &strategy.clone().into(),
            &out.client,
            InputBinding::new(a.clone().binding(), elem),
            InputBinding::new(b.clone().binding(), elem),
            out.clone().binding(),
            &mut elems,
        );
        match launched {
            Ok(()) => return out,
            Err(reason) => refused.push(format!("{strategy}: {reason:?}")),
        }
    }
    panic!(
        "no kernel multiplies {:?} by {:?} in {:?}: {}",
        a.meta.shape(),
        b.meta.shape(),
        a.dtype,
        refused.join("; ")
    );
}
