//! Launches of the attention kernels.

use burn::backend::DispatchDevice;
use burn::tensor::{DType, Device};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use half::{bf16, f16};

use super::arguments::{CallLaunch, DropoutLaunch, InputsLaunch, LensLaunch, MasksLaunch, OutputsLaunch};
use super::config::{FlashConfig, SPAN, TILE, UNITS};
use super::forward::forward;
use super::key_value_gradient::{QueryDataLaunch, key_value_gradient};
use super::one_tile::one_tile_gradients;
use super::query_gradient::query_gradient;
use crate::attention::ops::{FlashOps, FlashSpec};
use crate::dropout::kernel::DropArgsLaunch;
use crate::dropout::threshold_16;
use crate::gpu::hardware::is_hopper;
use crate::gpu::memory::empty;
use crate::gpu::tensor_map::tensor_map;
use crate::maybe::MaybeInts;

/// Returns whether the kernels support this dtype and head dimension on `device`.
pub(in crate::attention) fn serves(device: &Device, dtype: DType, head_dim: usize) -> bool {
    let device = device.clone().inner();
    let DispatchDevice::Cube(device) = device.as_dispatch() else { return false };
    is_hopper(&device.client()) && matches!(dtype, DType::BF16 | DType::F16) && (head_dim == 64 || head_dim == 128)
}

/// The arguments of one call.
struct Call {
    query: CubeTensor,
    key_value: CubeTensor,
    lengths: MaybeInts<CubeBackend>,
    documents: MaybeInts<CubeBackend>,
    random: MaybeInts<CubeBackend>,
    spec: FlashSpec,
    config: FlashConfig,
    /// T and S
    lens: [usize; 2],
}

impl Call {
    fn new(
        query: CubeTensor,
        key_value: Option<CubeTensor>,
        lengths: MaybeInts<CubeBackend>,
        documents: MaybeInts<CubeBackend>,
        random: MaybeInts<CubeBackend>,
        spec: FlashSpec,
    ) -> Self {
        let config = FlashConfig {
            n_heads: spec.n_heads,
            n_kv_heads: spec.n_kv_heads,
            head_dim: spec.head_dim,
            packed: key_value.is_none(),
            causal: spec.causal,
            lengths: matches!(lengths, MaybeInts::Some(_)),
            documents: matches!(documents, MaybeInts::Some(_)),
            dropout: spec.dropout > 0.0,
        };
        let query = into_contiguous(query);
        let key_value = key_value.map_or_else(|| query.clone(), into_contiguous);
        let lens = [query.meta.shape()[0] / spec.batch_size, key_value.meta.shape()[0] / spec.batch_size];
        Self { query, key_value, lengths, documents, random, spec, config, lens }
    }

    /// Returns the argument for an optional tensor of integers. A missing one is replaced by a buffer that the kernel
    /// does not touch.
    fn ints(&self, given: &MaybeInts<CubeBackend>) -> BufferArg {
        match given {
            MaybeInts::Some(tensor) => into_contiguous(tensor.clone()).into_buffer_arg(),
            MaybeInts::None => buffer(&self.query, 1),
        }
    }

    /// Returns the blocks for `heads` heads of `tiles` tiles, and the arguments by which `cube_place` finds a block's
    /// place: the heads of a group and the bits of its tiles. Queries, keys and values of a group take 8 MiB, so that
    /// two groups fit into L2 with their results.
    fn cubes(&self, heads: usize, tiles: usize) -> (CubeCount, u32, u32) {
        let [t, s] = self.lens;
        let bytes = 2 * self.spec.head_dim * (t + 2 * s);
        let heads_at_once = ((8 << 20) / bytes.max(1)).clamp(1, heads.max(1));
        let tile_bits = tiles.max(1).ilog2().min(2);
        let [x, y, z] = [heads_at_once << tile_bits, tiles.div_ceil(1 << tile_bits), heads.div_ceil(heads_at_once)]
            .map(|n| n as u32);
        (CubeCount::Static(x, y, z), heads_at_once as u32, tile_bits)
    }

    fn inputs<E: Float + CubeElement>(&self) -> InputsLaunch<E> {
        InputsLaunch::new(tensor_map(&self.query, TILE, SPAN), tensor_map(&self.key_value, TILE, SPAN))
    }

    fn masks(&self) -> MasksLaunch {
        MasksLaunch::new(self.ints(&self.lengths), self.ints(&self.documents))
    }

    fn lens(&self) -> LensLaunch {
        let [t, s] = self.lens;
        LensLaunch::new(t as u32, s as u32)
    }

    fn dropout(&self) -> DropoutLaunch {
        let FlashSpec { site, dropout, .. } = self.spec;
        DropoutLaunch::new(
            self.ints(&self.random),
            DropArgsLaunch::new(site, threshold_16(dropout), 1.0 / (1.0 - dropout)),
        )
    }

    /// Returns the blocks for `heads` heads per batch row, of `len` positions, and their arguments.
    fn blocks(&self, heads: usize, len: usize) -> (CubeCount, CallLaunch) {
        let heads = self.spec.batch_size * heads;
        let (cubes, heads_at_once, tile_bits) = self.cubes(heads, len.div_ceil(TILE));
        let call = CallLaunch::new(self.masks(), heads as u32, self.lens(), self.dropout(), heads_at_once, tile_bits);
        (cubes, call)
    }

    fn forward(self) -> (CubeTensor, CubeTensor) {
        match self.query.dtype {
            DType::F16 => self.forward_as::<f16>(),
            _ => self.forward_as::<bf16>(),
        }
    }

    fn forward_as<E: Float + CubeElement>(self) -> (CubeTensor, CubeTensor) {
        let Self { spec, config, lens: [t, _], .. } = self;
        let (b, h) = (spec.batch_size, spec.n_heads);
        let (cubes, call) = self.blocks(h, t);
        let out = empty(&self.query, [b * t, h * spec.head_dim], self.query.dtype);
        let lse = empty(&self.query, [b * h * t], DType::F32);

        // SAFETY: TMA clips to the matrix of keys and values; everything else is guarded by T and S.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            forward::launch_unchecked::<E>(
                &out.client,
                cubes,
                CubeDim::new_1d(UNITS),
                self.inputs(),
                call,
                vectors(&out),
                lse.clone().into_buffer_arg(),
                config,
            );
        }
        (out, lse)
    }

    /// Returns the gradients of the queries, and of keys and values. If they are one matrix, both are the same tensor.
    fn backward(self, out: CubeTensor, lse: CubeTensor, d_out: CubeTensor) -> (CubeTensor, CubeTensor) {
        let like = |x: &CubeTensor| empty(x, [x.meta.shape()[0], x.meta.shape()[1]], x.dtype);
        let d_query = like(&self.query);
        let d_key_value = if self.config.packed { d_query.clone() } else { like(&self.key_value) };
        let forward = Forward { out, lse, d_out: into_contiguous(d_out) };
        let [t, s] = self.lens;
        match (self.query.dtype, self.config.one_tile(t, s)) {
            (DType::F16, true) => self.one_tile::<f16>(&forward, &d_query, &d_key_value),
            (DType::F16, false) => self.tile_by_tile::<f16>(&forward, &d_query, &d_key_value),
            (_, true) => self.one_tile::<bf16>(&forward, &d_query, &d_key_value),
            (_, false) => self.tile_by_tile::<bf16>(&forward, &d_query, &d_key_value),
        }
        (d_query, d_key_value)
    }

    /// Computes the gradients of heads whose queries and keys fit into one tile.
    fn one_tile<E: Float + CubeElement>(&self, forward: &Forward, d_query: &CubeTensor, d_key_value: &CubeTensor) {
        let heads = self.spec.batch_size * self.spec.n_heads;
        // SAFETY: as in `forward`; the gradients have columns of their own, which together fill the matrix.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            one_tile_gradients::launch_unchecked::<E>(
                &forward.out.client,
                CubeCount::Static(heads as u32, 1, 1),
                CubeDim::new_1d(UNITS),
                self.inputs(),
                forward.outputs(),
                self.masks(),
                self.dropout(),
                self.lens(),
                vectors(d_query),
                vectors(d_key_value),
                self.config,
            );
        }
    }

    /// Computes the gradients by two kernels, the second of which reads the deltas that the first one leaves.
    fn tile_by_tile<E: Float + CubeElement>(&self, forward: &Forward, d_query: &CubeTensor, d_key_value: &CubeTensor) {
        let Self { spec, config, lens: [t, s], .. } = *self;
        let Forward { out, lse, d_out } = forward;
        let (cubes, call) = self.blocks(spec.n_heads, t);
        let (key_cubes, key_call) = self.blocks(spec.n_kv_heads, s);
        let delta = empty(lse, [spec.batch_size * spec.n_heads * t], DType::F32);

        // SAFETY: as in `forward`; both kernels write columns of their own and together fill a common gradient.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            query_gradient::launch_unchecked::<E>(
                &out.client,
                cubes,
                CubeDim::new_1d(UNITS),
                self.inputs(),
                forward.outputs(),
                call,
                delta.clone().into_buffer_arg(),
                vectors(d_query),
                config,
            );
            key_value_gradient::launch_unchecked::<E>(
                &out.client,
                key_cubes,
                CubeDim::new_1d(UNITS),
                self.inputs(),
                QueryDataLaunch::new(
                    tensor_map(d_out, TILE, SPAN),
                    lse.clone().into_buffer_arg(),
                    delta.into_buffer_arg(),
                ),
                key_call,
                vectors(d_key_value),
                config,
            );
        }
    }
}

/// The results of forward, and the gradient of `out`.
struct Forward {
    out: CubeTensor,
    lse: CubeTensor,
    d_out: CubeTensor,
}

impl Forward {
    fn outputs<E: Float + CubeElement>(&self) -> OutputsLaunch<E> {
        let Self { out, lse, d_out } = self;
        let d_out_tiles = tensor_map(d_out, TILE, SPAN);
        OutputsLaunch::new(vectors(out), vectors(d_out), d_out_tiles, lse.clone().into_buffer_arg())
    }
}

/// Returns a contiguous tensor of two-byte elements as a buffer of 16-byte vectors.
fn vectors(tensor: &CubeTensor) -> BufferArg {
    debug_assert_eq!(tensor.dtype.size(), 2);
    buffer(tensor, tensor.meta.shape().num_elements() / 8)
}

fn buffer(tensor: &CubeTensor, len: usize) -> BufferArg {
    // SAFETY: callers pass lengths within the tensor.
    #[expect(unsafe_code, reason = "an argument whose element is not the tensor's own")]
    unsafe {
        BufferArg::from_raw_parts(tensor.handle.clone(), len)
    }
}

impl FlashOps for CubeBackend {
    fn flash_self(
        qkv: CubeTensor,
        lengths: MaybeInts<Self>,
        documents: MaybeInts<Self>,
        random: MaybeInts<Self>,
        spec: FlashSpec,
    ) -> (CubeTensor, CubeTensor) {
        Call::new(qkv, None, lengths, documents, random, spec).forward()
    }

    fn flash_self_backward(
        qkv: CubeTensor,
        out: CubeTensor,
        lse: CubeTensor,
        d_out: CubeTensor,
        lengths: MaybeInts<Self>,
        documents: MaybeInts<Self>,
        random: MaybeInts<Self>,
        spec: FlashSpec,
    ) -> CubeTensor {
        Call::new(qkv, None, lengths, documents, random, spec).backward(out, lse, d_out).0
    }

    fn flash_cross(
        query: CubeTensor,
        key_value: CubeTensor,
        lengths: MaybeInts<Self>,
        random: MaybeInts<Self>,
        spec: FlashSpec,
    ) -> (CubeTensor, CubeTensor) {
        Call::new(query, Some(key_value), lengths, MaybeInts::None, random, spec).forward()
    }

    fn flash_cross_backward(
        query: CubeTensor,
        key_value: CubeTensor,
        out: CubeTensor,
        lse: CubeTensor,
        d_out: CubeTensor,
        lengths: MaybeInts<Self>,
        random: MaybeInts<Self>,
        spec: FlashSpec,
    ) -> (CubeTensor, CubeTensor) {
        Call::new(query, Some(key_value), lengths, MaybeInts::None, random, spec).backward(out, lse, d_out)
    }
}
