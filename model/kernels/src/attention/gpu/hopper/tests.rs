//! The kernels, compiled without a device.

use cubecl::prelude::*;
use half::{bf16, f16};

use super::super::tests::{call, dropout, lens, masks};
use super::forward::attention_forward;
use super::in_turns;
use super::key_value_gradient::{QueryDataCompilationArg, key_value_gradient};
use super::one_pass;
use super::one_tile::one_tile_gradients;
use super::query_gradient::query_gradient;
use super::wide_key_value_gradient::wide_key_value_gradient;
use super::wide_query_gradient::wide_query_gradient;
use crate::attention::gpu::shared::arguments::{InputsCompilationArg, OutputsCompilationArg};
use crate::attention::gpu::shared::config::{FlashConfig, UNITS};
use crate::gpu::constant::Constant;
use crate::gpu::mma_f32::Arithmetic;
use crate::gpu::offline::{Compiled, buffer, settings};

fn inputs<E: Float>() -> InputsCompilationArg<E> {
    InputsCompilationArg { query: (), key_value: () }
}

fn outputs<E: Float>() -> OutputsCompilationArg<E> {
    OutputsCompilationArg { out: buffer(), d_out: buffer(), d_out_tiles: (), lse: buffer() }
}

/// Compiles forward, the two kernels of backward, and the one for a single tile.
fn kernels<E: Float>(case: &str, cfg: FlashConfig) -> [Compiled; 4] {
    let (launch, properties, target) = settings(cfg.forward_groups() as u32 * UNITS);
    let first = attention_forward::AttentionForward::<E>::new(
        launch,
        properties,
        target,
        inputs(),
        call(),
        buffer(),
        buffer(),
        cfg,
    );

    let (launch, properties, target) = settings(UNITS);
    #[rustfmt::skip]
    let second = query_gradient::QueryGradient::<E>::new(
        launch, properties, target, inputs(), outputs(), call(), buffer(), buffer(), cfg,
    );

    let (launch, properties, target) = settings(UNITS);
    let data = QueryDataCompilationArg { d_out: (), lse: buffer(), delta: buffer() };
    #[rustfmt::skip]
    let third = key_value_gradient::KeyValueGradient::<E>::new(
        launch, properties, target, inputs(), data, call(), buffer(), cfg,
    );

    let (launch, properties, target) = settings(UNITS);
    #[rustfmt::skip]
    let fourth = one_tile_gradients::OneTileGradients::<E>::new(
        launch, properties, target, inputs(), outputs(), masks(), dropout(), lens(), buffer(), buffer(), cfg,
    );
    [
        Compiled::new(format!("attention/forward/{case}"), first),
        Compiled::new(format!("attention/query-gradient/{case}"), second),
        Compiled::new(format!("attention/key-value-gradient/{case}"), third),
        Compiled::new(format!("attention/one-tile-gradients/{case}"), fourth),
    ]
}

/// Compiles forward and the two kernels of backward for wide heads.
fn wide_kernels<E: Float>(case: &str, cfg: FlashConfig) -> [Compiled; 3] {
    let units = 2 * UNITS;
    let (launch, properties, target) = settings(units);
    let first = attention_forward::AttentionForward::<E>::new(
        launch,
        properties,
        target,
        inputs(),
        call(),
        buffer(),
        buffer(),
        cfg,
    );

    let (launch, properties, target) = settings(units);
    #[rustfmt::skip]
    let second = wide_query_gradient::WideQueryGradient::<E>::new(
        launch, properties, target, inputs(), outputs(), call(), buffer(), buffer(), cfg,
    );

    let (launch, properties, target) = settings(units);
    let data = QueryDataCompilationArg { d_out: (), lse: buffer(), delta: buffer() };
    #[rustfmt::skip]
    let third = wide_key_value_gradient::WideKeyValueGradient::<E>::new(
        launch, properties, target, inputs(), data, call(), buffer(), cfg,
    );
    [
        Compiled::new(format!("attention/forward/{case}"), first),
        Compiled::new(format!("attention/wide-query-gradient/{case}"), second),
        Compiled::new(format!("attention/wide-key-value-gradient/{case}"), third),
    ]
}

fn in_turns_kernel<E: Float>(case: &str, flash: FlashConfig) -> Compiled {
    let cfg = in_turns::TurnsConfig { flash };
    let (launch, properties, target) = settings((cfg.groups() as u32 + 1) * UNITS);
    #[rustfmt::skip]
    let kernel = in_turns::attention_in_turns::AttentionInTurns::<E>::new(
        launch, properties, target, inputs(), call(), buffer(), buffer(), cfg,
    );
    Compiled::new(format!("attention/in-turns/{case}"), kernel)
}

fn wide_configs() -> [(&'static str, FlashConfig); 6] {
    let [(_, plain), _, (_, masked), ..] = configs();
    let softcap = Some(Constant::new(50.0));
    [
        ("causal-160", FlashConfig { head_dim: 160, ..plain }),
        ("causal-192", FlashConfig { head_dim: 192, ..plain }),
        ("causal-256", FlashConfig { head_dim: 256, ..plain }),
        ("causal-lengths-documents-dropout-256", FlashConfig { head_dim: 256, ..masked }),
        ("cross-256", FlashConfig { head_dim: 256, packed: false, causal: false, ..plain }),
        ("causal-window-softcap-256", FlashConfig { head_dim: 256, window: Some(4096), softcap, ..plain }),
    ]
}

fn one_pass_configs() -> [(&'static str, FlashConfig); 5] {
    let plain = plain();
    let wide = FlashConfig { head_dim: 128, ..plain };
    [
        ("causal", plain),
        ("causal-128", wide),
        ("causal-documents-window-128", FlashConfig { documents: true, window: Some(4096), ..wide }),
        ("cross-lengths", FlashConfig { packed: false, causal: false, lengths: true, ..plain }),
        ("cross-lengths-128", FlashConfig { packed: false, causal: false, lengths: true, ..wide }),
    ]
}

/// A causal call with grouped heads of 64, and nothing else.
pub(super) fn plain() -> FlashConfig {
    FlashConfig {
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
    }
}

fn configs() -> [(&'static str, FlashConfig); 13] {
    let plain = plain();
    let masked = FlashConfig { lengths: true, documents: true, dropout: true, ..plain };
    let relative = FlashConfig { relative: true, scale: Some(Constant::new(1.0)), ..plain };
    let of_encoder = FlashConfig { causal: false, lengths: true, dropout: true, ..relative };

    [
        ("causal", plain),
        ("causal-documents", FlashConfig { documents: true, ..plain }),
        ("causal-lengths-documents-dropout", masked),
        ("lengths-dropout", FlashConfig { n_kv_heads: 4, causal: false, documents: false, ..masked }),
        ("cross-128", FlashConfig { head_dim: 128, packed: false, causal: false, ..plain }),
        ("causal-window-128", FlashConfig { head_dim: 128, window: Some(1000), ..plain }),
        ("causal-softcap", FlashConfig { softcap: Some(Constant::new(50.0)), ..plain }),
        ("causal-relative", relative),
        ("lengths-dropout-relative-128", FlashConfig { head_dim: 128, ..of_encoder }),
        ("causal-32", FlashConfig { head_dim: 32, ..plain }),
        ("causal-80", FlashConfig { head_dim: 80, ..plain }),
        ("causal-96", FlashConfig { head_dim: 96, ..plain }),
        ("causal-lengths-documents-dropout-96", FlashConfig { head_dim: 96, ..masked }),
    ]
}

/// The kernels that `ptx.lock` records.
pub(in crate::attention::gpu) fn offline_kernels() -> Vec<Compiled> {
    let mut compiled = Vec::new();
    for (case, config) in configs() {
        compiled.extend(kernels::<bf16>(&format!("{case}-bf16"), config));
        compiled.extend(kernels::<f16>(&format!("{case}-f16"), config));
    }
    for (case, config) in one_pass_configs() {
        compiled.extend(one_pass::tests::kernels::<bf16>(&format!("{case}-bf16"), config));
        compiled.extend(one_pass::tests::kernels::<f16>(&format!("{case}-f16"), config));
    }
    for (case, config) in one_pass_configs() {
        compiled.push(in_turns_kernel::<bf16>(&format!("{case}-bf16"), config));
        compiled.push(in_turns_kernel::<f16>(&format!("{case}-f16"), config));
    }
    for (case, config) in wide_configs() {
        compiled.extend(wide_kernels::<bf16>(&format!("{case}-bf16"), config));
        compiled.extend(wide_kernels::<f16>(&format!("{case}-f16"), config));
    }
    compiled
}
