//! Which kernels compute attention, and its results.

use burn::backend::DispatchDevice;
use burn::tensor::{DType, Device};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use half::{bf16, f16};

use super::shared::call::{Call, Forward};
use super::{ampere, hopper};
use crate::attention::ops::{FlashOps, FlashSpec};
use crate::gpu::hardware::kernel_set;
use crate::gpu::memory::empty;
use crate::kernel_set::KernelSet;
use crate::maybe::{Maybe, MaybeInts};

/// Returns whether the kernels support this dtype and head dimension on `device`.
pub(in crate::attention) fn serves(device: &Device, dtype: DType, head_dim: usize) -> bool {
    let device = device.clone().inner();
    let DispatchDevice::Cube(device) = device.as_dispatch() else { return false };
    matches!(dtype, DType::BF16 | DType::F16 | DType::F32) && set_for(&device.client(), dtype, head_dim).is_some()
}

/// Returns whether the kernels also support relative positions.
pub(in crate::attention) fn serves_relative(device: &Device, dtype: DType, head_dim: usize) -> bool {
    serves(device, dtype, head_dim) && ampere::serves_relative(dtype, head_dim)
}

/// Returns the kernels for heads of `head_dim` elements of `dtype`: those for Ampere serve more of them.
fn set_for(client: &Client, dtype: DType, head_dim: usize) -> Option<KernelSet> {
    match kernel_set(client)? {
        KernelSet::Hopper if dtype != DType::F32 && hopper::serves(head_dim) => Some(KernelSet::Hopper),
        _ => ampere::serves(dtype, head_dim).then_some(KernelSet::Ampere),
    }
}

fn forward(call: &Call) -> (CubeTensor, CubeTensor) {
    match call.query.dtype {
        DType::F16 => forward_as::<f16>(call),
        DType::BF16 => forward_as::<bf16>(call),
        _ => forward_as::<f32>(call),
    }
}

fn forward_as<E: Float + CubeElement>(call: &Call) -> (CubeTensor, CubeTensor) {
    let Call { spec, query, lens: [t, _], .. } = call;
    let out = empty(query, [spec.batch_size * t, spec.n_heads * spec.head_dim], query.dtype);
    let lse = empty(query, [spec.batch_size * spec.n_heads * t], DType::F32);
    match set_for(&query.client, query.dtype, spec.head_dim) {
        Some(KernelSet::Hopper) => hopper::launch_forward::<E>(call, &out, &lse),
        _ => ampere::launch_forward::<E>(call, &out, &lse),
    }
    (out, lse)
}

/// The gradients of the queries, and of keys and values: the same tensor if they are one matrix. Also of what is added to the scores.
struct Gradients {
    query: CubeTensor,
    key_value: CubeTensor,
    relative: Option<CubeTensor>,
}

fn backward(call: &Call, out: CubeTensor, lse: CubeTensor, d_out: CubeTensor) -> Gradients {
    let like = |x: &CubeTensor| empty(x, [x.meta.shape()[0], x.meta.shape()[1]], x.dtype);
    let query = like(&call.query);
    let key_value = if call.config.packed { query.clone() } else { like(&call.key_value) };
    let forward = Forward { out, lse, d_out: into_contiguous(d_out) };
    let relative = match call.query.dtype {
        DType::F16 => backward_as::<f16>(call, &forward, &query, &key_value),
        DType::BF16 => backward_as::<bf16>(call, &forward, &query, &key_value),
        _ => backward_as::<f32>(call, &forward, &query, &key_value),
    };
    Gradients { query, key_value, relative }
}

/// Computes the gradients of queries, keys and values, and returns the one of what is added to the scores.
fn backward_as<E: Float + CubeElement>(
    call: &Call,
    forward: &Forward,
    d_query: &CubeTensor,
    d_key_value: &CubeTensor,
) -> Option<CubeTensor> {
    match set_for(&call.query.client, call.query.dtype, call.spec.head_dim) {
        Some(KernelSet::Hopper) => hopper::launch_backward::<E>(call, forward, d_query, d_key_value),
        _ => ampere::launch_backward::<E>(call, forward, d_query, d_key_value),
    }
    call.config.relative.then(|| ampere::launch_relative_gradient::<E>(call, forward))
}

impl FlashOps for CubeBackend {
    fn flash_self(
        qkv: CubeTensor,
        relative: Maybe<Self>,
        lengths: MaybeInts<Self>,
        documents: MaybeInts<Self>,
        random: MaybeInts<Self>,
        spec: FlashSpec,
    ) -> (CubeTensor, CubeTensor) {
        let _call = spec.record_forward(&qkv, None);
        forward(&Call::new(qkv, None, [lengths, documents, random], relative, spec))
    }

    fn flash_self_backward(
        qkv: CubeTensor,
        out: CubeTensor,
        lse: CubeTensor,
        d_out: CubeTensor,
        relative: Maybe<Self>,
        lengths: MaybeInts<Self>,
        documents: MaybeInts<Self>,
        random: MaybeInts<Self>,
        spec: FlashSpec,
    ) -> (CubeTensor, CubeTensor) {
        let _call = spec.record_backward(&qkv, None);
        let call = Call::new(qkv, None, [lengths, documents, random], relative, spec);
        let Gradients { query, relative, .. } = backward(&call, out, lse, d_out);
        let nothing = || empty(&query, [1], DType::F32);
        let relative = relative.unwrap_or_else(nothing);
        (query, relative)
    }

    fn flash_cross(
        query: CubeTensor,
        key_value: CubeTensor,
        lengths: MaybeInts<Self>,
        random: MaybeInts<Self>,
        spec: FlashSpec,
    ) -> (CubeTensor, CubeTensor) {
        let _call = spec.record_forward(&query, Some(&key_value));
        forward(&Call::new(query, Some(key_value), [lengths, MaybeInts::None, random], Maybe::None, spec))
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
        let _call = spec.record_backward(&query, Some(&key_value));
        let call = Call::new(query, Some(key_value), [lengths, MaybeInts::None, random], Maybe::None, spec);
        let Gradients { query, key_value, .. } = backward(&call, out, lse, d_out);
        (query, key_value)
    }
}
