//! What the class of a tokenizer says: most classes of `transformers` 5 take only vocabulary, merges and post-processor from
//! `tokenizer.json`, and some of them not even the last. Source: `AutoTokenizer` and the classes there.

mod parts;
mod roles;

use serde_json::Value;

/// Classes that do not follow `tokenizer.json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Bert,
    CodeLlama,
    Cohere,
    Gemma,
    Gpt2,
    GptNeoX,
    Llama,
    Pegasus,
    Qwen2,
    /// RoBERTa and BART.
    Roberta,
    T5,
    XlmRoberta,
}

/// Who decides how a folder divides texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Rules {
    /// `tokenizer.json`.
    File,
    Class(Class),
    /// A class that Kiln does not know, or that does not read this kind of file.
    Unknown(String),
}

/// Other names of BERT's class, without the ending `Tokenizer`.
const LIKE_BERT: &str = "ConvBert DistilBert Electra LayoutLM Lxmert MobileBert SqueezeBert";

/// Other names of RoBERTa's.
const LIKE_ROBERTA: &str = "Bart LED Longformer Mvp";

/// Classes of `transformers` with rules of their own which Kiln does not know.
const UNKNOWN: &str = "Albert Barthez Bartpho BertGeneration BertJapanese Bertweet BigBird BioGpt Blenderbot BlenderbotSmall ByT5 \
                       CLIP CTRL Camembert Canine CodeGen Cpm CpmAnt DPRContextEncoder DPRQuestionEncoder DPRReader Deberta \
                       DebertaV2 Esm FNet FSMT Flaubert Funnel GPTNeoXJapanese GPTSw3 Herbert LayoutLMv2 LayoutLMv3 LayoutXLM \
                       Luke M2M100 MBart MBart50 MLuke MPNet Marian MarkupLM MyT5 Nllb Nougat OpenAIGPT PLBart Perceiver Phobert \
                       ProphetNet Qwen3_5 Reformer RemBert RoCBert RoFormer Siglip Siglip2 Splinter Tapas Udop Whisper XGLM XLM \
                       XLNet";

fn is_in(names: &str, short: &str) -> bool {
    names.split(' ').any(|name| name == short)
}

/// Returns the class that `transformers` has for models of this type.
fn registered(model: &Value) -> Option<&'static str> {
    Some(match model["model_type"].as_str()? {
        "bert" | "distilbert" | "electra" => "BertTokenizer",
        "gpt2" | "phi" => "GPT2Tokenizer",
        "roberta" | "bart" => "RobertaTokenizer",
        "xlm-roberta" => "XLMRobertaTokenizer",
        "qwen2" | "qwen3" => "Qwen2Tokenizer",
        "gemma" | "gemma2" | "gemma3" | "gemma3_text" => "GemmaTokenizer",
        "gpt_neox" => "GPTNeoXTokenizer",
        "mistral" => "TokenizersBackend",
        "pegasus" => "PegasusTokenizer",
        "t5" | "mt5" => "T5Tokenizer",
        _ => return None,
    })
}

/// Whether models of this type have their usual class, whatever a file names: many are published with a wrong one.
fn is_fixed(model: &Value) -> bool {
    model["model_type"] == "qwen2"
}

/// Returns the name of a folder's class: the one that a file names, or else the usual one of the model's type.
fn name<'v>(tokenizer: &Value, config: &'v Value, model: &'v Value) -> Option<&'v str> {
    let usual = registered(model);
    let declared = config["tokenizer_class"].as_str().or_else(|| model["tokenizer_class"].as_str());
    let declared = declared.map(|name| name.strip_suffix("Fast").unwrap_or(name));
    match (declared, usual) {
        (_, Some("TokenizersBackend")) => None,
        (Some(_), Some(usual)) if is_fixed(model) => Some(usual),
        // Llama 3 names it, and it cannot spell bytes.
        (Some("LlamaTokenizer"), _) if spells_bytes(tokenizer) => None,
        // Its files agree with it, and an import asks for the languages.
        (Some("NllbTokenizer"), _) if model["model_type"] == "m2m_100" => None,
        _ => declared.or(usual),
    }
}

impl Rules {
    pub(super) fn of(tokenizer: &Value, config: &Value, model: &Value) -> Self {
        let Some(name) = name(tokenizer, config, model) else { return Self::File };
        let Some(class) = Class::named(name) else {
            let is_known =
                name.strip_suffix("Tokenizer").is_some_and(|short| UNKNOWN.split(' ').any(|one| one == short));
            return if is_known { Self::Unknown(name.to_owned()) } else { Self::File };
        };
        if tokenizer["model"]["type"] == class.model() { Self::Class(class) } else { Self::Unknown(name.to_owned()) }
    }

    pub(super) fn class(&self) -> Option<Class> {
        match self {
            Self::Class(class) => Some(*class),
            _ => None,
        }
    }

    /// Says that ids may differ, where that is so.
    pub(super) fn unknown(&self) -> Option<String> {
        let Self::Unknown(name) = self else { return None };
        Some(format!(
            "transformers divides texts by the rules of {name}, which Kiln does not have for such a tokenizer.json: it follows the file, and \
             ids may differ; tokenizer_class = \"PreTrainedTokenizerFast\" in tokenizer_config.json lets both follow the file"
        ))
    }
}

impl Class {
    fn named(name: &str) -> Option<Self> {
        Some(match name.strip_suffix("Tokenizer")? {
            "Bert" => Self::Bert,
            short if is_in(LIKE_BERT, short) => Self::Bert,
            "CodeLlama" => Self::CodeLlama,
            "Cohere" => Self::Cohere,
            "Gemma" => Self::Gemma,
            "GPT2" => Self::Gpt2,
            "GPTNeoX" => Self::GptNeoX,
            "Llama" => Self::Llama,
            "Pegasus" => Self::Pegasus,
            "Qwen2" => Self::Qwen2,
            "Roberta" => Self::Roberta,
            short if is_in(LIKE_ROBERTA, short) => Self::Roberta,
            "T5" => Self::T5,
            "XLMRoberta" => Self::XlmRoberta,
            _ => return None,
        })
    }

    /// Whether the class takes its padding token from `padding` in the file, where no other place names one.
    pub(super) fn pads_as_the_file(self) -> bool {
        matches!(self, Self::CodeLlama | Self::Llama)
    }

    /// The kind of vocabulary that the class reads.
    fn model(self) -> &'static str {
        match self {
            Self::Bert => "WordPiece",
            Self::Pegasus | Self::T5 | Self::XlmRoberta => "Unigram",
            _ => "BPE",
        }
    }

    /// Whether it pads in front of a text.
    pub(super) fn pads_left(self) -> bool {
        matches!(self, Self::CodeLlama | Self::Cohere | Self::Gemma | Self::Llama)
    }

    /// The settings that its parts come from.
    fn keys(self) -> &'static str {
        match self {
            Self::Bert => "do_lower_case, strip_accents and tokenize_chinese_chars",
            Self::Llama => "add_prefix_space and legacy",
            Self::Gemma | Self::Pegasus | Self::T5 => "its special tokens",
            _ => "add_prefix_space",
        }
    }

    /// Gives a tokenizer the parts of the class. Returns their names, of the ones that change it.
    pub(super) fn apply(self, tokenizer: &mut Value, config: &Value) -> Vec<&'static str> {
        let mut changed = Vec::new();
        for (name, part) in self.parts(tokenizer, config) {
            // As a decoder it has no settings that act.
            let spell_bytes =
                name == "decoder" && [&tokenizer[name], &part].iter().all(|one| one["type"] == "ByteLevel");
            if !spell_bytes && !parts::same(&tokenizer[name], &part) {
                tokenizer[name] = part;
                changed.push(name);
            }
        }
        let settings = self.model_settings(config);
        if !settings.iter().all(|(key, value)| parts::is_set_to(&tokenizer["model"], key, value)) {
            settings.into_iter().for_each(|(key, value)| tokenizer["model"][key] = value);
            changed.push("model");
        }
        changed
    }

    /// Says what the class changes in `tokenizer.json`.
    pub(super) fn says(self, changed: &[&str], model: &Value) -> Option<String> {
        let way_out = if is_fixed(model) {
            "transformers has this class for all models of this type"
        } else {
            "tokenizer_class = \"PreTrainedTokenizerFast\" in tokenizer_config.json lets tokenizer.json win"
        };
        (!changed.is_empty()).then(|| {
            format!(
                "the tokenizer's class says otherwise than tokenizer.json, in {}; Kiln follows the class and its settings {} (or their \
                 defaults), like version 5 of transformers; {way_out}",
                changed.join(" and "),
                self.keys()
            )
        })
    }
}

/// Whether the file spells texts as bytes, in its pre-tokenizer or decoder.
fn spells_bytes(tokenizer: &Value) -> bool {
    ["pre_tokenizer", "decoder"].iter().any(|part| has_byte_level(&tokenizer[*part]))
}

fn has_byte_level(part: &Value) -> bool {
    let parts = ["pretokenizers", "decoders"].iter().filter_map(|key| part[*key].as_array()).flatten();
    part["type"] == "ByteLevel" || parts.into_iter().any(has_byte_level)
}
