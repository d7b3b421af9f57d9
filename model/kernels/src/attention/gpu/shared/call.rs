//! One call of attention: its tensors, and the arguments that all kernels take.

use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::arguments::{CallLaunch, DropoutLaunch, LensLaunch, MasksLaunch};
use super::config::FlashConfig;
use crate::attention::ops::FlashSpec;
use crate::dropout::kernel::DropArgsLaunch;
use crate::dropout::threshold_16;
use crate::gpu::constant::Constant;
use crate::gpu::mma_f32::Arithmetic;
use crate::maybe::{Maybe, MaybeInts};

/// The arguments of one call.
pub(crate) struct Call {
    pub(crate) query: CubeTensor,
    pub(crate) key_value: CubeTensor,
    pub(crate) lengths: MaybeInts<CubeBackend>,
    pub(crate) documents: MaybeInts<CubeBackend>,
    /// `[H, T + S - 1]`, f32
    pub(crate) relative: Option<CubeTensor>,
    pub(crate) random: MaybeInts<CubeBackend>,
    pub(crate) spec: FlashSpec,
    pub(crate) config: FlashConfig,
    /// T and S
    pub(crate) lens: [usize; 2],
}

impl Call {
    pub(crate) fn new(
        query: CubeTensor,
        key_value: Option<CubeTensor>,
        [lengths, documents, random]: [MaybeInts<CubeBackend>; 3],
        relative: Maybe<CubeBackend>,
        spec: FlashSpec,
    ) -> Self {
        let relative = relative.into_option().map(into_contiguous);
        let config = FlashConfig {
            n_heads: spec.n_heads,
            n_kv_heads: spec.n_kv_heads,
            head_dim: spec.head_dim,
            packed: key_value.is_none(),
            causal: spec.causal,
            lengths: matches!(lengths, MaybeInts::Some(_)),
            documents: matches!(documents, MaybeInts::Some(_)),
            window: spec.window.map(|window| window as u32),
            scale: (spec.scale != spec.usual_scale()).then(|| Constant::new(spec.scale)),
            relative: relative.is_some(),
            softcap: spec.softcap.map(Constant::new),
            dropout: spec.dropout > 0.0,
            arithmetic: Arithmetic::new(query.dtype, spec.f32_products),
        };

        let query = into_contiguous(query);
        let key_value = key_value.map_or_else(|| query.clone(), into_contiguous);
        let lens = [query.meta.shape()[0] / spec.batch_size, key_value.meta.shape()[0] / spec.batch_size];
        Self { query, key_value, lengths, documents, relative, random, spec, config, lens }
    }

    /// Returns the argument for an optional tensor of integers. A missing one is replaced by a buffer that the kernel
    /// does not touch.
    fn ints(&self, given: &MaybeInts<CubeBackend>) -> BufferArg {
        match given {
            MaybeInts::Some(tensor) => into_contiguous(tensor.clone()).into_buffer_arg(),
            MaybeInts::None => buffer(&self.query, 1),
        }
    }

    /// Returns the blocks for `heads` heads per batch row, of `tiles` tiles, and the numbers by which `cube_place` finds a block's place.
    /// Queries, keys and values of a group take 8 MiB, so that two groups fit into L2 with their results.
    pub(crate) fn places(&self, heads: usize, tiles: usize) -> ((u32, u32, u32), Places) {
        let heads = self.spec.batch_size * heads;
        let [t, s] = self.lens;
        let bytes = self.query.dtype.size() * self.spec.head_dim * (t + 2 * s);
        let heads_at_once = ((8 << 20) / bytes.max(1)).clamp(1, heads.max(1));
        let tile_bits = tiles.max(1).ilog2().min(2);
        let [x, y, z] = [heads_at_once << tile_bits, tiles.div_ceil(1 << tile_bits), heads.div_ceil(heads_at_once)]
            .map(|n| n as u32);
        ((x, y, z), Places { heads: heads as u32, heads_at_once: heads_at_once as u32, tile_bits })
    }

    pub(crate) fn masks(&self) -> MasksLaunch {
        let relative = match &self.relative {
            Some(numbers) => numbers.clone().into_buffer_arg(),
            None => buffer(&self.query, 1),
        };
        MasksLaunch::new(self.ints(&self.lengths), self.ints(&self.documents), relative)
    }

    pub(crate) fn lens(&self) -> LensLaunch {
        let [t, s] = self.lens;
        LensLaunch::new(t as u32, s as u32)
    }

    pub(crate) fn dropout(&self) -> DropoutLaunch {
        let FlashSpec { site, dropout, .. } = self.spec;
        DropoutLaunch::new(
            self.ints(&self.random),
            DropArgsLaunch::new(site, threshold_16(dropout), 1.0 / (1.0 - dropout)),
        )
    }

    /// Returns the blocks for `heads` heads per batch row, of `tiles` tiles, and their arguments.
    pub(crate) fn blocks(&self, heads: usize, tiles: usize) -> (CubeCount, CallLaunch) {
        let ((x, y, z), Places { heads, heads_at_once, tile_bits }) = self.places(heads, tiles);
        let call = CallLaunch::new(self.masks(), heads, self.lens(), self.dropout(), heads_at_once, tile_bits);
        (CubeCount::Static(x, y, z), call)
    }
}

/// Where a kernel's blocks are.
pub(crate) struct Places {
    /// Heads, counted over all batch rows.
    pub(crate) heads: u32,
    /// Heads of a group, and the bits of its tiles.
    pub(crate) heads_at_once: u32,
    pub(crate) tile_bits: u32,
}

/// The results of forward, and the gradient of `out`.
pub(crate) struct Forward {
    pub(crate) out: CubeTensor,
    pub(crate) lse: CubeTensor,
    pub(crate) d_out: CubeTensor,
}

/// Returns a contiguous tensor as a buffer of vectors of 16 bytes.
pub(crate) fn vectors(tensor: &CubeTensor) -> BufferArg {
    buffer(tensor, tensor.meta.shape().num_elements() * tensor.dtype.size() / 16)
}

pub(crate) fn buffer(tensor: &CubeTensor, len: usize) -> BufferArg {
    // SAFETY: callers pass lengths within the tensor.
    #[expect(unsafe_code, reason = "an argument whose element is not the tensor's own")]
    unsafe {
        BufferArg::from_raw_parts(tensor.handle.clone(), len)
    }
}
