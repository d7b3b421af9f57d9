//! Launches of the attention kernels.

use burn::backend::DispatchDevice;
use burn::tensor::{DType, Device};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use half::{bf16, f16};

use super::config::{FlashConfig, SPAN, TILE, UNITS};
use super::forward::forward;
use super::key_value_gradient::key_value_gradient;
use super::one_tile::one_tile_gradients;
use super::query_gradient::query_gradient;
use crate::attention::ops::{FlashOps, FlashSpec};
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

    fn keep(&self) -> f32 {
        1.0 / (1.0 - self.spec.dropout)
    }

    fn forward(self) -> (CubeTensor, CubeTensor) {
        match self.query.dtype {
            DType::F16 => self.forward_as::<f16>(),
            _ => self.forward_as::<bf16>(),
        }
    }

    fn forward_as<E: Float + CubeElement>(self) -> (CubeTensor, CubeTensor) {
        let Self { spec, config, lens: [t, s], .. } = self;
        let (b, h) = (spec.batch_size, spec.n_heads);
        let (cubes, heads_at_once, tile_bits) = self.cubes(b * h, t.div_ceil(TILE));
        let out = empty(&self.query, [b * t, h * spec.head_dim], self.query.dtype);
        let lse = empty(&self.query, [b * h * t], DType::F32);
        // SAFETY: TMA clips to the matrix of keys and values; everything else is guarded by T and S.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            forward::launch_unchecked::<E>(
                &out.client,
                cubes,
                CubeDim::new_1d(UNITS),
                tensor_map(&self.query, TILE, SPAN),
                tensor_map(&self.key_value, TILE, SPAN),
                self.ints(&self.lengths),
                self.ints(&self.documents),
                self.ints(&self.random),
                vectors(&out),
                lse.clone().into_buffer_arg(),
                (b * h) as u32,
                t as u32,
                s as u32,
                spec.site,
                threshold_16(spec.dropout),
                self.keep(),
                heads_at_once,
                tile_bits,
                config,
            );
        }
        (out, lse)
    }

    /// Returns the gradients of the queries, and of keys and values. If they are one matrix, both are the same tensor.
    fn backward(self, out: CubeTensor, lse: CubeTensor, d_out: CubeTensor) -> (CubeTensor, CubeTensor) {
        match self.query.dtype {
            DType::F16 => self.backward_as::<f16>(out, lse, d_out),
            _ => self.backward_as::<bf16>(out, lse, d_out),
        }
    }

    fn backward_as<E: Float + CubeElement>(
        self,
        out: CubeTensor,
        lse: CubeTensor,
        d_out: CubeTensor,
    ) -> (CubeTensor, CubeTensor) {
        let Self { spec, config, lens: [t, s], .. } = self;
        let (b, h) = (spec.batch_size, spec.n_heads);
        let d_out = into_contiguous(d_out);
        let like = |x: &CubeTensor| empty(x, [x.meta.shape()[0], x.meta.shape()[1]], x.dtype);
        let d_query = like(&self.query);
        let d_key_value = if config.packed { d_query.clone() } else { like(&self.key_value) };
        if config.one_tile(t, s) {
            // SAFETY: as in `forward`; the gradients have columns of their own, which together fill the matrix.
            #[expect(unsafe_code, reason = "launching without bounds checks")]
            unsafe {
                one_tile_gradients::launch_unchecked::<E>(
                    &out.client,
                    CubeCount::Static((b * h) as u32, 1, 1),
                    CubeDim::new_1d(UNITS),
                    tensor_map(&self.query, TILE, SPAN),
                    tensor_map(&self.key_value, TILE, SPAN),
                    vectors(&out),
                    vectors(&d_out),
                    tensor_map(&d_out, TILE, SPAN),
                    lse.into_buffer_arg(),
                    self.ints(&self.lengths),
                    self.ints(&self.documents),
                    self.ints(&self.random),
                    vectors(&d_query),
                    vectors(&d_key_value),
                    t as u32,
                    s as u32,
                    spec.site,
                    threshold_16(spec.dropout),
                    self.keep(),
                    config,
                );
            }
            return (d_query, d_key_value);
        }
        let (cubes, heads_at_once, tile_bits) = self.cubes(b * h, t.div_ceil(TILE));
        let (key_cubes, key_heads_at_once, key_tile_bits) = self.cubes(b * spec.n_kv_heads, s.div_ceil(TILE));
        let delta = empty(&lse, [b * h * t], DType::F32);
        // SAFETY: as in `forward`; both kernels write columns of their own and together fill a common gradient.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            query_gradient::launch_unchecked::<E>(
                &out.client,
                cubes,
                CubeDim::new_1d(UNITS),
                tensor_map(&self.query, TILE, SPAN),
                tensor_map(&self.key_value, TILE, SPAN),
                vectors(&out),
                vectors(&d_out),
                tensor_map(&d_out, TILE, SPAN),
                lse.clone().into_buffer_arg(),
                self.ints(&self.lengths),
                self.ints(&self.documents),
                self.ints(&self.random),
                delta.clone().into_buffer_arg(),
                vectors(&d_query),
                (b * h) as u32,
                t as u32,
                s as u32,
                spec.site,
                threshold_16(spec.dropout),
                self.keep(),
                heads_at_once,
                tile_bits,
                config,
            );
            key_value_gradient::launch_unchecked::<E>(
                &out.client,
                key_cubes,
                CubeDim::new_1d(UNITS),
                tensor_map(&self.query, TILE, SPAN),
                tensor_map(&self.key_value, TILE, SPAN),
                tensor_map(&d_out, TILE, SPAN),
                lse.into_buffer_arg(),
                delta.into_buffer_arg(),
                self.ints(&self.lengths),
                self.ints(&self.documents),
                self.ints(&self.random),
                vectors(&d_key_value),
                (b * spec.n_kv_heads) as u32,
                t as u32,
                s as u32,
                spec.site,
                threshold_16(spec.dropout),
                self.keep(),
                key_heads_at_once,
                key_tile_bits,
                config,
            );
        }
        (d_query, d_key_value)
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
