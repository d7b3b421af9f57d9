//! Which kernels compute attention, and its results.

use burn::backend::DispatchDevice;
use burn::tensor::{DType, Device};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use half::{bf16, f16};

use super::call::{Call, Forward};
use super::{ampere, hopper};
use crate::attention::ops::{FlashOps, FlashSpec};
use crate::gpu::hardware::kernel_set;
use crate::gpu::memory::empty;
use crate::kernel_set::KernelSet;
use crate::maybe::MaybeInts;

/// Returns whether the kernels support this dtype and head dimension on `device`.
pub(in crate::attention) fn serves(device: &Device, dtype: DType, head_dim: usize) -> bool {
    let device = device.clone().inner();
    let DispatchDevice::Cube(device) = device.as_dispatch() else { return false };
    matches!(dtype, DType::BF16 | DType::F16 | DType::F32) && set_for(&device.client(), dtype, head_dim).is_some()
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

/// Returns the gradients of the queries, and of keys and values. If they are one matrix, both are the same tensor.
fn backward(call: &Call, out: CubeTensor, lse: CubeTensor, d_out: CubeTensor) -> (CubeTensor, CubeTensor) {
    let like = |x: &CubeTensor| empty(x, [x.meta.shape()[0], x.meta.shape()[1]], x.dtype);
    let d_query = like(&call.query);
    let d_key_value = if call.config.packed { d_query.clone() } else { like(&call.key_value) };
    let forward = Forward { out, lse, d_out: into_contiguous(d_out) };
    match call.query.dtype {
        DType::F16 => backward_as::<f16>(call, &forward, &d_query, &d_key_value),
        DType::BF16 => backward_as::<bf16>(call, &forward, &d_query, &d_key_value),
        _ => backward_as::<f32>(call, &forward, &d_query, &d_key_value),
    }
    (d_query, d_key_value)
}

fn backward_as<E: Float + CubeElement>(call: &Call, forward: &Forward, d_query: &CubeTensor, d_key_value: &CubeTensor) {
    match set_for(&call.query.client, call.query.dtype, call.spec.head_dim) {
        Some(KernelSet::Hopper) => hopper::launch_backward::<E>(call, forward, d_query, d_key_value),
        _ => ampere::launch_backward::<E>(call, forward, d_query, d_key_value),
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
        let _call = spec.record_forward(&qkv, None);
        forward(&Call::new(qkv, None, lengths, documents, random, spec))
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
        let _call = spec.record_backward(&qkv, None);
        backward(&Call::new(qkv, None, lengths, documents, random, spec), out, lse, d_out).0
    }

    fn flash_cross(
        query: CubeTensor,
        key_value: CubeTensor,
        lengths: MaybeInts<Self>,
        random: MaybeInts<Self>,
        spec: FlashSpec,
    ) -> (CubeTensor, CubeTensor) {
        let _call = spec.record_forward(&query, Some(&key_value));
        forward(&Call::new(query, Some(key_value), lengths, MaybeInts::None, random, spec))
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
        backward(&Call::new(query, Some(key_value), lengths, MaybeInts::None, random, spec), out, lse, d_out)
    }
}
