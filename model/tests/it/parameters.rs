//! Names, shapes, number and distribution of parameters.

use burn::module::Module;
use burn::tensor::{DType, Device};
use kiln_model::{InitScheme, NormPlacement, Positions, TieEmbeddings, TransformerConfig, flops};

use crate::gemma::gemma_config;
use crate::support::{
    bart_config, bert_config, gpt2_config, llama_config, marian_config, shapes, small_config, t5_like_config, weights,
};
use crate::t5::t5_config;

#[test]
fn paths_are_readable_and_in_a_fixed_order() {
    let config = TransformerConfig {
        n_encoder_layers: 1,
        n_decoder_layers: 1,
        positions: Positions::Learned,
        tie_embeddings: TieEmbeddings::None,
        ..small_config()
    };
    let found: Vec<String> = shapes(&config.init_encoder_decoder(1, DType::F32, &Device::flex()))
        .into_iter()
        .map(|(path, dims)| format!("{path} {dims:?}"))
        .collect();

    let wanted = "\
        source_embedding.table [12, 16]
        target_embedding.table [12, 16]
        source_positions.table [64, 16]
        target_positions.table [64, 16]
        encoder.layers.0.self_attention_norm.gamma [16]
        encoder.layers.0.self_attention_norm.beta [16]
        encoder.layers.0.self_attention.qkv.weight [16, 48]
        encoder.layers.0.self_attention.qkv.bias [48]
        encoder.layers.0.self_attention.output.weight [16, 16]
        encoder.layers.0.self_attention.output.bias [16]
        encoder.layers.0.feed_forward_norm.gamma [16]
        encoder.layers.0.feed_forward_norm.beta [16]
        encoder.layers.0.feed_forward.input.weight [16, 32]
        encoder.layers.0.feed_forward.input.bias [32]
        encoder.layers.0.feed_forward.output.weight [32, 16]
        encoder.layers.0.feed_forward.output.bias [16]
        encoder.norm.gamma [16]
        encoder.norm.beta [16]
        decoder.layers.0.self_attention_norm.gamma [16]
        decoder.layers.0.self_attention_norm.beta [16]
        decoder.layers.0.self_attention.qkv.weight [16, 48]
        decoder.layers.0.self_attention.qkv.bias [48]
        decoder.layers.0.self_attention.output.weight [16, 16]
        decoder.layers.0.self_attention.output.bias [16]
        decoder.layers.0.cross_attention_norm.gamma [16]
        decoder.layers.0.cross_attention_norm.beta [16]
        decoder.layers.0.cross_attention.query.weight [16, 16]
        decoder.layers.0.cross_attention.query.bias [16]
        decoder.layers.0.cross_attention.key_value.weight [16, 32]
        decoder.layers.0.cross_attention.key_value.bias [32]
        decoder.layers.0.cross_attention.output.weight [16, 16]
        decoder.layers.0.cross_attention.output.bias [16]
        decoder.layers.0.feed_forward_norm.gamma [16]
        decoder.layers.0.feed_forward_norm.beta [16]
        decoder.layers.0.feed_forward.input.weight [16, 32]
        decoder.layers.0.feed_forward.input.bias [32]
        decoder.layers.0.feed_forward.output.weight [32, 16]
        decoder.layers.0.feed_forward.output.bias [16]
        decoder.norm.gamma [16]
        decoder.norm.beta [16]
        output.weight [16, 12]";
    assert_eq!(found, wanted.lines().map(str::trim).collect::<Vec<_>>());
}

#[test]
fn counted_parameters_equal_those_of_the_model() {
    for norm in [NormPlacement::Pre, NormPlacement::Post] {
        for positions in [Positions::Sinusoidal, Positions::Learned] {
            for tie_embeddings in [TieEmbeddings::ThreeWay, TieEmbeddings::Output, TieEmbeddings::None] {
                let target_vocab_size = if tie_embeddings == TieEmbeddings::ThreeWay { 12 } else { 20 };
                let config = TransformerConfig { norm, positions, tie_embeddings, target_vocab_size, ..small_config() };
                let model = config.init_encoder_decoder(1, DType::F32, &Device::flex());
                assert_eq!(model.num_params() as u64, flops::n_params(&config).total(), "{config:?}");
            }
        }
    }
}

#[test]
fn counted_parameters_equal_those_of_every_family() {
    let pooled = TransformerConfig { pooler: true, mlm_head: false, ..bert_config() };
    let untied = TransformerConfig { tie_embeddings: TieEmbeddings::None, ..bert_config() };
    let scaled = TransformerConfig { scale_output: true, tie_embeddings: TieEmbeddings::ThreeWay, ..t5_config() };
    let sandwiched = TransformerConfig { norm: NormPlacement::Sandwich, ..small_config() };
    let tied = TransformerConfig { tie_embeddings: TieEmbeddings::Output, ..llama_config() };
    let families = [
        gpt2_config(),
        llama_config(),
        gemma_config(),
        sandwiched,
        tied,
        bert_config(),
        pooled,
        untied,
        bart_config(),
        marian_config(),
        t5_like_config(),
        t5_config(),
        scaled,
    ];

    for config in families {
        let model = config.init(1, DType::F32, &Device::flex());
        assert_eq!(model.num_params() as u64, flops::n_params(&config).total(), "{config:?}");
    }
}

#[test]
fn paths_of_a_llama_have_no_variant_no_bias_and_no_cross_attention() {
    let config = TransformerConfig { n_decoder_layers: 1, ..llama_config() };
    let found: Vec<String> = shapes(&config.init(1, DType::F32, &Device::flex()))
        .into_iter()
        .map(|(path, dims)| format!("{path} {dims:?}"))
        .collect();
    let wanted = "\
        embedding.table [12, 16]
        decoder.layers.0.self_attention_norm.gamma [16]
        decoder.layers.0.self_attention.qkv.weight [16, 32]
        decoder.layers.0.self_attention.output.weight [16, 16]
        decoder.layers.0.feed_forward_norm.gamma [16]
        decoder.layers.0.feed_forward.input.weight [16, 64]
        decoder.layers.0.feed_forward.output.weight [32, 16]
        decoder.norm.gamma [16]
        output.weight [16, 12]";
    assert_eq!(found, wanted.lines().map(str::trim).collect::<Vec<_>>());
}

#[test]
fn paths_of_a_bert_hold_its_head() {
    let config = TransformerConfig { n_encoder_layers: 1, pooler: true, ..bert_config() };
    let found: Vec<String> =
        shapes(&config.init(1, DType::F32, &Device::flex())).into_iter().map(|(path, _)| path).collect();

    let wanted = "\
        embedding.table
        token_types.table
        positions.table
        embedding_norm.gamma
        embedding_norm.beta
        encoder.layers.0.self_attention_norm.gamma
        encoder.layers.0.self_attention_norm.beta
        encoder.layers.0.self_attention.qkv.weight
        encoder.layers.0.self_attention.qkv.bias
        encoder.layers.0.self_attention.output.weight
        encoder.layers.0.self_attention.output.bias
        encoder.layers.0.feed_forward_norm.gamma
        encoder.layers.0.feed_forward_norm.beta
        encoder.layers.0.feed_forward.input.weight
        encoder.layers.0.feed_forward.input.bias
        encoder.layers.0.feed_forward.output.weight
        encoder.layers.0.feed_forward.output.bias
        pooler.weight
        pooler.bias
        head.transform.weight
        head.transform.bias
        head.norm.gamma
        head.norm.beta
        head.bias";
    assert_eq!(found, wanted.lines().map(str::trim).collect::<Vec<_>>());
}

#[test]
fn small_normal_init_has_one_scale_except_at_the_ends_of_pre_norm_branches() {
    let config = TransformerConfig {
        d_model: 64,
        n_decoder_layers: 8,
        target_vocab_size: 100,
        init: InitScheme::SmallNormal,
        ..gpt2_config()
    };
    let weights = weights(&config.init(1, DType::F32, &Device::flex()));
    for (path, wanted) in [
        ("embedding.table", 0.02),
        ("positions.table", 0.02),
        ("decoder.layers.0.self_attention.qkv.weight", 0.02),
        ("decoder.layers.3.self_attention.output.weight", 0.02 / 4.0),
        ("decoder.layers.7.feed_forward.output.weight", 0.02 / 4.0),
    ] {
        let values = &weights[path];
        let found = (values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32).sqrt();
        assert!((found / wanted - 1.0).abs() < 0.06, "{path}: {found}, wanted {wanted}");
    }
}

#[test]
#[should_panic(expected = "another architecture")]
fn a_model_of_another_architecture_is_refused() {
    gpt2_config().init_encoder_only(1, DType::F32, &Device::flex());
}

#[test]
fn weights_depend_on_seed_and_path_only() {
    let config = small_config();
    let of =
        |config: &TransformerConfig, seed| weights(&config.init_encoder_decoder(seed, DType::F32, &Device::flex()));
    let first = of(&config, 7);
    assert_eq!(first, of(&config, 7));
    let path = "encoder.layers.1.self_attention.qkv.weight";
    assert_ne!(first[path], of(&config, 8)[path]);
    assert_ne!(first[path], first["encoder.layers.0.self_attention.qkv.weight"]);
    // One more layer and another table leave all other weights unchanged.
    let grown = TransformerConfig { n_encoder_layers: 3, tie_embeddings: TieEmbeddings::Output, ..config };
    let grown = of(&grown, 7);
    for (path, values) in &first {
        assert_eq!(values, &grown[path], "{path}");
    }
}

#[test]
fn xavier_fills_its_bounds() {
    let weights = weights(&TransformerConfig { d_model: 64, ..small_config() }.init_encoder_decoder(
        1,
        DType::F32,
        &Device::flex(),
    ));
    let largest = |path: &str| weights[path].iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
    for (path, fans) in [
        ("encoder.layers.0.self_attention.qkv.weight", 64 + 192),
        ("decoder.layers.0.cross_attention.query.weight", 64 + 192),
        ("encoder.layers.0.self_attention.output.weight", 64 + 64),
        ("decoder.layers.1.feed_forward.input.weight", 64 + 32),
    ] {
        let (found, bound) = (largest(path), (6.0 / fans as f32).sqrt());
        assert!(found <= bound && found > 0.98 * bound, "{path}: {found} of {bound}");
    }
    assert!(weights["decoder.norm.gamma"].iter().all(|&x| x == 1.0));
    assert!(weights["decoder.layers.0.feed_forward.input.bias"].iter().all(|&x| x == 0.0));
}

#[test]
fn scaled_init_shrinks_the_ends_of_branches() {
    let config = TransformerConfig {
        d_model: 64,
        source_vocab_size: 100,
        target_vocab_size: 100,
        n_decoder_layers: 8,
        init: InitScheme::Scaled,
        ..small_config()
    };
    let weights = weights(&config.init_encoder_decoder(1, DType::F32, &Device::flex()));
    let small = (2.0 / (5.0 * 64.0_f32)).sqrt();
    for (path, wanted) in [
        ("encoder.layers.0.self_attention.qkv.weight", small),
        ("encoder.layers.0.self_attention.output.weight", small / 2.0),
        ("decoder.layers.3.cross_attention.output.weight", small / 4.0),
        ("decoder.layers.3.feed_forward.output.weight", small / 4.0),
        ("source_embedding.table", 1.0 / 8.0),
    ] {
        let values = &weights[path];
        let found = (values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32).sqrt();
        assert!((found / wanted - 1.0).abs() < 0.06, "{path}: {found}, wanted {wanted}");
    }
}

#[test]
#[should_panic(expected = "a vocabulary size is still 0")]
fn a_model_needs_its_vocabulary() {
    TransformerConfig::tiny().init_encoder_decoder(1, DType::F32, &Device::flex());
}
