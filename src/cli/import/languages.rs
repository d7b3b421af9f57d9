//! The languages of a model that translates between many, M2M-100 or NLLB: a token in front of each source and each target.

use std::path::Path;

use anyhow::Result;
use kiln_interchange::hugging_face::{FolderError, TokenizerFile};
use kiln_model::hf::Family;

use super::super::error::Usage;

/// The languages that a run translates from and into, as the user names them.
#[derive(Debug, Default, clap::Args)]
pub(super) struct Languages {
    /// M2M-100 and NLLB: the language to translate from, such as eng_Latn or en [default: the tokenizer's]
    #[arg(long, value_name = "TOKEN")]
    source_lang: Option<String>,

    /// M2M-100 and NLLB: the language to translate into, such as ita_Latn or it [default: the folder's forced_bos_token_id]
    #[arg(long, value_name = "TOKEN")]
    target_lang: Option<String>,
}

impl Languages {
    /// Returns whether the user names none.
    pub(super) fn are_default(&self) -> bool {
        self.source_lang.is_none() && self.target_lang.is_none()
    }

    /// Returns the tokens in front of sources and targets; `None` for other families. `around` are the ids that the tokenizer puts
    /// around a text, and `forced_first` begins every translation.
    pub(super) fn tokens(
        &self,
        family: Family,
        tokenizer: &TokenizerFile,
        around: Option<&(Vec<u32>, Vec<u32>)>,
        forced_first: Option<u32>,
        path: &Path,
    ) -> Result<Option<[String; 2]>> {
        if family != Family::M2m100 {
            if self.source_lang.is_some() || self.target_lang.is_some() {
                let text =
                    format!("--source-lang and --target-lang are for M2M-100 and NLLB, and this is a {family} model");
                return Err(Usage(text).into());
            }
            return Ok(None);
        }

        let spelled = |id: u32| tokenizer.token(id).filter(|token| is_language(token)).map(str::to_owned);
        // Older files of NLLB put the language behind the text.
        let of_tokenizer =
            around.into_iter().flat_map(|(before, behind)| before.iter().chain(behind)).find_map(|id| spelled(*id));
        // M2M-100 writes the code of a language between underscores.
        let named = |name: &Option<String>| {
            let token = name.as_ref().map(|code| format!("__{code}__"));
            token.filter(|token| tokenizer.has(token)).or_else(|| name.clone())
        };
        let source = named(&self.source_lang).or(of_tokenizer);
        let target = named(&self.target_lang).or_else(|| spelled(forced_first?));
        let (Some(source), Some(target)) = (source, target) else {
            let text = "this model translates between many languages; name yours with --source-lang and --target-lang, such as \
                        eng_Latn and ita_Latn (NLLB) or en and it (M2M-100)";
            return Err(Usage(text.into()).into());
        };
        if let Some(missing) =
            [&source, &target].into_iter().find(|token| !(is_language(token) && tokenizer.has(token)))
        {
            let reason = format!(
                "has no language \"{missing}\"; languages are called like eng_Latn and ita_Latn (NLLB) or en and it (M2M-100)"
            );
            return Err(FolderError::BadFile { path: path.to_path_buf(), reason }.into());
        }
        Ok(Some([source, target]))
    }
}

/// Whether a token is spelled like a language: `ita_Latn` or `__it__`.
fn is_language(token: &str) -> bool {
    let of_nllb = token.split_once('_').is_some_and(|(language, script)| language.len() == 3 && script.len() == 4);
    of_nllb || (token.len() > 4 && token.starts_with("__") && token.ends_with("__"))
}
