//! The kernel, compiled without a device.

use std::sync::Arc;

use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;
use cubecl::__private::Runtime;
use cubecl::cuda::CudaRuntime;

use super::{MatricesCompilationArg, PitchesCompilationArg, ResultsCompilationArg, SizesCompilationArg, gemm, threads};
use crate::activation::Activation;
use crate::gpu::mma_f32::Arithmetic;
use crate::gpu::offline::{Compiled, buffer, settings};
use crate::linear::Layout;
use crate::linear::gpu::shared::arguments::{GemmSizeCompilationArg, SplitKSizeCompilationArg};
use crate::linear::gpu::shared::config::{Epilogue, GemmConfig, Output, Sums};

/// Every layout with wide tiles, and every epilogue that differs with narrow ones.
fn configs(arithmetic: Arithmetic) -> Vec<(String, GemmConfig)> {
    let config = |layout, output, tile_n| GemmConfig::ampere(layout, output, tile_n, 16, arithmetic);
    let rounded = |epilogue| Output::Rounded { bias: true, epilogue };
    let activation = |activation, keeps_input| rounded(Epilogue::Activation { activation, keeps_input });
    let outputs = [
        ("bias", rounded(Epilogue::Store)),
        ("bias-residual", rounded(Epilogue::AddResidual)),
        ("bias-gelu-tanh-kept", activation(Activation::GeluTanh, true)),
        ("f32-split-k", Output::Sums(Sums::SplitK)),
        ("f32-accumulate", Output::Sums(Sums::Accumulate)),
    ];
    // In f32, accumulation adds a residual.
    let outputs = &outputs[..if arithmetic.is_f32() { 4 } else { 5 }];
    let mut configs = Vec::new();
    for (name, layout) in [("nn", Layout::NN), ("nt", Layout::NT), ("tn", Layout::TN)] {
        let (wide, columns) = if arithmetic == Arithmetic::F32 { ("", 128) } else { ("-wide", 256) };
        configs.push((format!("{name}-bias{wide}"), config(layout, outputs[0].1, columns)));
        configs.push((format!("{name}-f32-split-k{wide}"), config(layout, outputs[3].1, columns)));
    }
    let narrow = outputs.iter().map(|(case, output)| (format!("nn-{case}"), config(Layout::NN, *output, 128)));
    let is_new = |(case, _): &(String, GemmConfig)| !configs.iter().any(|(known, _)| known == case);
    let narrow: Vec<_> = narrow.filter(is_new).collect();
    configs.extend(narrow);
    configs
}

pub(in crate::linear::gpu) fn offline_kernels() -> Vec<Compiled> {
    let sixteen = configs(Arithmetic::Sixteen);
    let mut compiled: Vec<_> =
        sixteen.iter().map(|(case, config)| product(case, *config, ("bf16", DType::BF16))).collect();
    let (case, config) = &sixteen[0];
    compiled.push(product(case, *config, ("f16", DType::F16)));
    for (name, arithmetic) in [("tf32", Arithmetic::Tf32), ("f32", Arithmetic::F32)] {
        let configs = configs(arithmetic);
        compiled.extend(configs.iter().map(|(case, config)| product(case, *config, (name, DType::F32))));
    }
    compiled
}

fn product(case: &str, config: GemmConfig, (name, dtype): (&str, DType)) -> Compiled {
    let (launch, properties, _) = settings(threads(&config));
    // The instruction asks the target for its register layout.
    let target = Arc::new(CudaRuntime::target_properties());
    let kernel = gemm::Gemm::new(
        launch,
        properties,
        target,
        MatricesCompilationArg { a: buffer(), b: buffer(), bias: buffer() },
        ResultsCompilationArg { c: buffer(), auxiliary: buffer(), sums: buffer() },
        SizesCompilationArg {
            product: GemmSizeCompilationArg { m: (), n: (), pitch: (), k_tiles: () },
            pitches: PitchesCompilationArg { k: (), a: (), b: (), c: (), auxiliary: () },
        },
        SplitKSizeCompilationArg { slices: (), slice_len: (), tail_slices: () },
        config.vector(),
        config.arithmetic.register(),
        config,
        dtype_to_storage_type(dtype),
    );
    Compiled::for_ampere(format!("linear/ampere/{case}-{name}"), kernel)
}

#[test]
fn ampere_kernels_compile_without_a_device() {
    for Compiled { label, ptx, .. } in offline_kernels() {
        let code = ptx.expect("no function of libdevice");
        let is_f32 = label.ends_with("-tf32") || label.ends_with("-f32");
        let product = if is_f32 { "mma.sync.aligned.m16n8k8.row.col.f32.tf32" } else { "mma.sync.aligned.m16n8k16" };
        // Words across K, of both operands of a weight gradient, are read one by one.
        let read = if is_f32 && label.contains("/tn-") { "ld.shared" } else { "ldmatrix.sync.aligned.m8n8.x4" };
        for instruction in [product, read, "cp.async.cg.shared.global"] {
            assert!(code.contains(instruction), "{label}: {instruction}");
        }
        assert!(!["div.rn", "rcp.rn", "call"].iter().any(|slow| code.contains(slow)), "{label}");
    }
}
