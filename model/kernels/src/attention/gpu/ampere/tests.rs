//! The kernels, compiled without a device.

use std::sync::Arc;

use cubecl::__private::Runtime;
use cubecl::cuda::CudaRuntime;
use cubecl::prelude::*;
use half::{bf16, f16};

use super::super::tests::call;
use super::super::tests::lens;
use super::forward::attention_forward;
use super::key_value_gradient::{QueryDataCompilationArg, key_value_gradient};
use super::query_gradient::query_gradient;
use super::relative_gradient::{relative_gradient, sum_by_distance};
use super::split_gradient::key_or_value_gradient;
use super::{InputsCompilationArg, OutputsCompilationArg, is_wide, owns_one};
use crate::attention::gpu::shared::config::{FlashConfig, UNITS};
use crate::gpu::constant::Constant;
use crate::gpu::mma_f32::Arithmetic;
use crate::gpu::offline::{Compiled, buffer, settings};

/// Compiles forward and the kernels of backward, as they are launched for many tiles.
fn kernels<E: Float>(case: &str, cfg: FlashConfig) -> Vec<Compiled> {
    let vector = cfg.arithmetic.vector();
    let (launch, properties, _) = settings(UNITS);
    // The instruction asks the target for its register layout.
    let target = Arc::new(CudaRuntime::target_properties());
    let owned = if owns_one(&cfg) { 1 } else { 2 };
    let inputs = || InputsCompilationArg { query: buffer(), key_value: buffer() };
    let (l, p, t) = (launch.clone(), properties.clone(), target.clone());
    #[rustfmt::skip]
    let first = attention_forward::AttentionForward::<E>::new(
        l, p, t, inputs(), call(), buffer(), buffer(), vector, cfg, owned,
    );

    let outputs = OutputsCompilationArg { out: buffer(), d_out: buffer(), lse: buffer() };
    let (l, p, t) = (launch.clone(), properties.clone(), target.clone());
    #[rustfmt::skip]
    let second = query_gradient::QueryGradient::<E>::new(
        l, p, t, inputs(), outputs, call(), buffer(), buffer(), vector, cfg,
    );

    let mut compiled = vec![
        Compiled::for_ampere(format!("attention/ampere/forward/{case}"), first),
        Compiled::for_ampere(format!("attention/ampere/query-gradient/{case}"), second),
    ];

    let data = || QueryDataCompilationArg { d_out: buffer(), lse: buffer(), delta: buffer() };
    if cfg.relative {
        let outputs = OutputsCompilationArg { out: buffer(), d_out: buffer(), lse: buffer() };
        let (l, p, t) = (launch.clone(), properties.clone(), target.clone());
        #[rustfmt::skip]
        let kernel = relative_gradient::RelativeGradient::<E>::new(
            l, p, t, inputs(), outputs, call(), buffer(), buffer(), vector, cfg,
        );
        compiled.push(Compiled::for_ampere(format!("attention/ampere/relative-gradient/{case}"), kernel));
    }
    if !is_wide(&cfg) {
        #[rustfmt::skip]
        let third = key_value_gradient::KeyValueGradient::<E>::new(
            launch, properties, target, inputs(), data(), call(), buffer(), vector, cfg,
        );
        compiled.push(Compiled::for_ampere(format!("attention/ampere/key-value-gradient/{case}"), third));
        return compiled;
    }
    for (of_keys, name) in [(true, "key-gradient"), (false, "value-gradient")] {
        let (l, p, t) = (launch.clone(), properties.clone(), target.clone());
        #[rustfmt::skip]
        let kernel = key_or_value_gradient::KeyOrValueGradient::<E>::new(
            l, p, t, inputs(), data(), call(), buffer(), vector, of_keys, cfg,
        );
        compiled.push(Compiled::for_ampere(format!("attention/ampere/{name}/{case}"), kernel));
    }
    compiled
}

/// The kernel without products.
const SUMS: &str = "attention/ampere/sum-by-distance";

pub(in crate::attention::gpu) fn offline_kernels() -> Vec<Compiled> {
    let plain = FlashConfig {
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 64,
        packed: true,
        causal: true,
        lengths: false,
        documents: false,
        window: None,
        scale: None,
        relative: false,
        softcap: None,
        dropout: false,
        arithmetic: Arithmetic::Sixteen,
    };
    let masked = FlashConfig { lengths: true, documents: true, dropout: true, ..plain };
    let mut compiled = Vec::new();

    compiled.extend(kernels::<bf16>("causal-bf16", plain));
    compiled.extend(kernels::<f16>("causal-f16", plain));
    compiled.extend(kernels::<bf16>("causal-lengths-documents-dropout-bf16", masked));
    compiled.extend(kernels::<bf16>("causal-window-bf16", FlashConfig { window: Some(1000), ..plain }));
    let capped = FlashConfig { softcap: Some(Constant::new(50.0)), ..plain };
    compiled.extend(kernels::<bf16>("causal-softcap-bf16", capped));
    compiled.extend(kernels::<bf16>("causal-softcap-256-bf16", FlashConfig { head_dim: 256, ..capped }));
    let relative = FlashConfig { relative: true, scale: Some(Constant::new(1.0)), ..plain };
    compiled.extend(kernels::<bf16>("causal-relative-bf16", relative));
    let of_encoder = FlashConfig { head_dim: 128, causal: false, lengths: true, dropout: true, ..relative };
    compiled.extend(kernels::<bf16>("lengths-dropout-relative-128-bf16", of_encoder));
    let in_f32 = FlashConfig { arithmetic: Arithmetic::F32, ..relative };
    compiled.extend(kernels::<f32>("causal-relative-f32", in_f32));
    compiled.extend(kernels::<bf16>("causal-80-bf16", FlashConfig { head_dim: 80, ..plain }));
    compiled.extend(kernels::<bf16>("causal-96-bf16", FlashConfig { head_dim: 96, ..plain }));
    compiled.extend(kernels::<bf16>(
        "cross-128-bf16",
        FlashConfig { head_dim: 128, packed: false, causal: false, ..plain },
    ));

    compiled.extend(kernels::<bf16>("causal-136-bf16", FlashConfig { head_dim: 136, ..plain }));
    compiled.extend(kernels::<bf16>("causal-192-bf16", FlashConfig { head_dim: 192, ..plain }));
    compiled.extend(kernels::<f16>("causal-256-f16", FlashConfig { head_dim: 256, ..plain }));
    for head_dim in [192, 256] {
        let case = format!("causal-lengths-documents-dropout-{head_dim}-bf16");
        compiled.extend(kernels::<bf16>(&case, FlashConfig { head_dim, ..masked }));
    }
    compiled.extend(kernels::<bf16>(
        "cross-256-bf16",
        FlashConfig { head_dim: 256, packed: false, causal: false, ..plain },
    ));
    for (name, arithmetic) in [("f32", Arithmetic::F32), ("tf32", Arithmetic::Tf32)] {
        let (plain, masked) = (FlashConfig { arithmetic, ..plain }, FlashConfig { arithmetic, ..masked });
        compiled.extend(kernels::<f32>(&format!("causal-{name}"), plain));
        compiled.extend(kernels::<f32>(&format!("causal-lengths-documents-dropout-{name}"), masked));
        let cross = FlashConfig { head_dim: 128, packed: false, causal: false, documents: false, ..masked };
        compiled.extend(kernels::<f32>(&format!("cross-lengths-dropout-128-{name}"), cross));
    }

    let (launch, properties, _) = settings(UNITS);
    let target = Arc::new(CudaRuntime::target_properties());
    let sums = sum_by_distance::SumByDistance::new(launch, properties, target, buffer(), buffer(), lens());
    compiled.push(Compiled::for_ampere(SUMS, sums));
    compiled
}

#[test]
fn ampere_kernels_compile_without_a_device() {
    for Compiled { label, ptx, .. } in offline_kernels().into_iter().filter(|kernel| kernel.label != SUMS) {
        let Some(code) = ptx else { continue };
        let is_f32 = label.ends_with("f32");
        let product = if is_f32 { "mma.sync.aligned.m16n8k8.row.col.f32.tf32" } else { "mma.sync.aligned.m16n8k16" };
        for instruction in [product, "ldmatrix.sync.aligned.m8n8.x4", "cp.async.cg.shared.global"] {
            assert!(code.contains(instruction), "{label}: {instruction}");
        }
        assert!(!["div.", "rcp.rn", "call"].iter().any(|slow| code.contains(slow)), "{label}");
    }
}
