//! Which kernel serves a product on CUDA.

use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::backend::ops::FloatTensorOps;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use cubek::matmul::definition::{MatmulElems, MatmulGlobalElems};
use cubek::matmul::multi_level::Strategy;
use cubek::std::InputBinding;

use super::columns;
use super::kernel::{GemmConfig, PANEL, TILE_K, TILE_M, gemm, reduce_splits};
use super::ops::Activation;
use super::{Layout, LinearOps};
use crate::device::{empty, tensor_map};
use crate::dropout::Mask;
use crate::maybe::Maybe;

impl LinearOps for CubeBackend {
    fn product(a: CubeTensor, b: CubeTensor, layout: Layout) -> CubeTensor {
        product(a, b, None, layout, None, Mask::None)
    }

    fn fused_linear(
        x: CubeTensor,
        weight: CubeTensor,
        bias: Maybe<Self>,
        layout: Layout,
        activation: Option<Activation>,
        mask: Mask<Self>,
    ) -> CubeTensor {
        product(x, weight, bias.into_option(), layout, activation, mask)
    }

    fn activate(x: CubeTensor, activation: Activation, mask: Mask<Self>) -> CubeTensor {
        columns::activate(x, activation, mask)
    }

    fn activate_backward(
        kept: CubeTensor,
        dy: CubeTensor,
        activation: Activation,
        mask: Mask<Self>,
    ) -> (CubeTensor, CubeTensor) {
        columns::backward_and_sum(Some((kept, activation)), dy, mask)
    }

    fn column_sum(x: CubeTensor) -> CubeTensor {
        columns::backward_and_sum(None, x, Mask::None).1
    }

    fn batched_product(a: CubeTensor, b: CubeTensor) -> CubeTensor {
        let out = empty(&a, [a.meta.shape()[0], a.meta.shape()[1], b.meta.shape()[2]], a.dtype);
        stock_product(a, b, out)
    }
}

fn product(
    a: CubeTensor,
    b: CubeTensor,
    bias: Option<CubeTensor>,
    layout: Layout,
    activation: Option<Activation>,
    mask: Mask<CubeBackend>,
) -> CubeTensor {
    let (a, b, bias) = (into_contiguous(a), into_contiguous(b), bias.map(into_contiguous));
    let (m, n, k) = layout.sizes(a.meta.shape(), b.meta.shape());
    let out = empty(&a, [m, n], a.dtype);
    match Plan::new(&a, &b, layout, (m, n, k)) {
        Some(plan) => {
            let relu = activation == Some(Activation::Relu) && !mask.is_some();
            let y = plan.launch(a, b, bias, relu, out);
            match activation {
                Some(activation) if !relu => columns::activate(y, activation, mask),
                _ => y,
            }
        }
        None => {
            let transpose = |x: CubeTensor| burn_cubecl::ops::permute(x, &[1, 0]);
            let mut y = match layout {
                Layout::NN => stock_product(a, b, out),
                Layout::NT => stock_product(a, transpose(b), out),
                Layout::TN => stock_product(transpose(a), b, out),
            };
            if let Some(bias) = bias {
                y = CubeBackend::float_add(y, CubeBackend::float_reshape(bias, [1, n].into()));
            }
            match activation {
                Some(activation) => columns::activate(y, activation, mask),
                None => y,
            }
        }
    }
}

/// The backend's own product, with strategies named here: its autotune may prefer a TMA candidate whose launch fails
/// without an error, and its f32 default rounds to TF32.
fn stock_product(a: CubeTensor, b: CubeTensor, out: CubeTensor) -> CubeTensor {
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

/// How the wgmma kernel computes one product.
struct Plan {
    config: GemmConfig,
    m: usize,
    n: usize,
    k: usize,
    splits: usize,
    k_tiles_per_split: usize,
    multiprocessors: u32,
}

impl Plan {
    /// `None` where the kernel does not serve: no wgmma, another dtype, or rows that TMA cannot address (not a multiple
    /// of 16 bytes).
    fn new(a: &CubeTensor, b: &CubeTensor, layout: Layout, (m, n, k): (usize, usize, usize)) -> Option<Self> {
        let properties = a.client.properties();
        let served = a.dtype == DType::BF16 && b.dtype == DType::BF16 && !properties.features.matmul.wgmma.is_empty();
        let (a_row, b_row) = (a.meta.shape()[1], b.meta.shape()[1]);
        let aligned = a_row % 8 == 0 && b_row % 8 == 0 && n % 8 == 0 && aligned_start(a) && aligned_start(b);
        if !served || !aligned || m * n * k == 0 {
            return None;
        }
        let multiprocessors = properties.hardware.num_streaming_multiprocessors.unwrap_or(132);
        let tiles = |tile_n: usize| m.div_ceil(TILE_M) * n.div_ceil(tile_n);
        // Wide tiles read less; narrow ones fill the device when there are few.
        let tile_n = if n <= 128 || tiles(256) < multiprocessors as usize { 128 } else { 256 };
        let stages = 4;
        let k_tiles = k.div_ceil(TILE_K);
        let splits = split_count(tiles(tile_n), k_tiles, multiprocessors as usize);
        // Whole turns of the ring per split, so that only the last can be ragged.
        let k_tiles_per_split = if splits == 1 { k_tiles } else { k_tiles.div_ceil(splits).next_multiple_of(stages) };
        let splits = k_tiles.div_ceil(k_tiles_per_split);
        let config = GemmConfig {
            tile_n,
            stages,
            a_mn: layout == Layout::TN,
            b_mn: layout != Layout::NT,
            ragged: !k_tiles.is_multiple_of(stages),
            split: splits > 1,
            bias: false,
            relu: false,
            group_m: 16,
        };
        Some(Self { config, m, n, k, splits, k_tiles_per_split, multiprocessors })
    }

    fn launch(self, a: CubeTensor, b: CubeTensor, bias: Option<CubeTensor>, relu: bool, out: CubeTensor) -> CubeTensor {
        let Self { config, m, n, k, splits, k_tiles_per_split, multiprocessors } = self;
        let config = GemmConfig { bias: bias.is_some(), relu, ..config };
        // Without a bias neither kernel touches it.
        let bias = bias.unwrap_or_else(|| out.clone());
        let client = out.client.clone();
        let map_a = if config.a_mn { tensor_map(&a, TILE_K, PANEL) } else { tensor_map(&a, TILE_M, TILE_K) };
        let map_b = if config.b_mn { tensor_map(&b, TILE_K, PANEL) } else { tensor_map(&b, config.tile_n, TILE_K) };
        let tiles = m.div_ceil(TILE_M) * n.div_ceil(config.tile_n) * splits;
        let (partial, partial_pairs) = if config.split {
            (client.empty(splits * m * n * 4), splits * m * n / 2)
        } else {
            // Not touched; a kernel argument needs some buffer.
            (out.handle.clone(), m * n / 4)
        };
        // SAFETY: the maps describe whole contiguous tensors and TMA clips to them; `partial` holds `splits` matrices
        // and stores to it are guarded by rows and columns.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            gemm::launch_unchecked(
                &client,
                CubeCount::Static((tiles as u32).min(multiprocessors), 1, 1),
                CubeDim::new_1d(config.units()),
                map_a,
                map_b,
                tensor_map(&out, PANEL, PANEL),
                BufferArg::from_raw_parts(partial.clone(), partial_pairs),
                BufferArg::from_raw_parts(bias.handle.clone(), n / 2),
                m as u32,
                n as u32,
                k.div_ceil(TILE_K) as u32,
                splits as u32,
                k_tiles_per_split as u32,
                config,
            );
            if config.split {
                let quads = m * n / 4;
                reduce_splits::launch_unchecked(
                    &client,
                    CubeCount::Static(quads.div_ceil(256) as u32, 1, 1),
                    CubeDim::new_1d(256),
                    BufferArg::from_raw_parts(partial, splits * quads),
                    BufferArg::from_raw_parts(bias.handle, n / 4),
                    BufferArg::from_raw_parts(out.handle.clone(), quads),
                    splits as u32,
                    (n / 4) as u32,
                    config,
                );
            }
        }
        out
    }
}

/// Splits of K that give every multiprocessor work when the output has few tiles; each keeps at least 16 K tiles.
fn split_count(tiles: usize, k_tiles: usize, multiprocessors: usize) -> usize {
    if tiles * 2 > multiprocessors {
        return 1;
    }
    (multiprocessors / tiles).min(k_tiles / 16).max(1)
}

/// TMA reads from addresses that are multiples of 16 bytes.
fn aligned_start(tensor: &CubeTensor) -> bool {
    tensor.handle.offset_start.unwrap_or(0).is_multiple_of(16)
}
