//! Texts with masks, for a model that fills them in.

use serde_json::{Value, json};

use super::TextTokenizer;
use super::special::COMMON_MASKS;
use super::vocabulary::{Vocabulary, not_a_tokenizer};
use crate::corpus::Task;
use crate::error::Result;

/// Encodes texts in which a mask stands for each hidden token, and fills them in.
///
/// A training text that spells the mask token is encoded as text. Here the spelling is the token. The usual spellings
/// of other vocabularies (`[MASK]`, `<mask>`) mean it too, unless the vocabulary has a token of that name.
#[derive(Debug)]
pub struct MaskedEncoder {
    vocabulary: Vocabulary,
    /// The spelling of the mask token, and others that mean it.
    spellings: Vec<String>,
    mask: u32,
    /// Marks a token that continues the word in front of it.
    continues: Option<String>,
    around: (Vec<u32>, Vec<u32>),
}

impl MaskedEncoder {
    /// Makes an encoder for the vocabulary of `tokenizer`.
    ///
    /// # Errors
    ///
    /// If the vocabulary has no mask token.
    pub fn new(tokenizer: &TextTokenizer) -> Result<Self> {
        tokenizer.check(Task::Mlm)?;
        let (name, mask) = tokenizer.mask().expect("checked above");
        let others = COMMON_MASKS.iter().copied().filter(|other| *other != name && tokenizer.id(other).is_none());
        let spellings = [name].into_iter().chain(others).map(str::to_owned).collect();

        let parts = with_readable_mask(tokenizer.json(), name, mask, tokenizer.mask_settings())?;
        let continues = parts["model"]["continuing_subword_prefix"].as_str().filter(|mark| !mark.is_empty());
        let continues = continues.map(str::to_owned);
        let controls: Vec<&str> = tokenizer.special_names().into_iter().filter(|other| *other != name).collect();
        let vocabulary = Vocabulary::parse(parts.to_string(), None, &controls, tokenizer.unknown())?;
        Ok(Self { vocabulary, spellings, mask, continues, around: tokenizer.around() })
    }

    /// Returns the id of the mask token.
    pub fn mask(&self) -> u32 {
        self.mask
    }

    /// Returns the spelling of the mask token.
    pub fn mask_token(&self) -> &str {
        &self.spellings[0]
    }

    /// Returns the ids of a whole row: the text, with [`Self::mask`] for each mask, between the tokens that stand around
    /// a row of masked language modelling.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let [name, others @ ..] = self.spellings.as_slice() else { unreachable!("the mask token has a spelling") };
        let text = others.iter().fold(text.to_owned(), |text, other| text.replace(other, name));
        let (before, behind) = &self.around;
        let mut ids = before.clone();
        self.vocabulary.encode(&self.vocabulary.tokenizer, &text, &mut ids)?;
        ids.extend(behind);
        Ok(ids)
    }

    /// Returns `text` without its masks.
    pub fn without_masks(&self, text: &str) -> String {
        self.spellings.iter().fold(text.to_owned(), |text, mask| text.replace(mask, ""))
    }

    /// Returns the text of one token. WordPiece marks the continuation of a word with `##`.
    pub fn token(&self, id: u32) -> Result<String> {
        self.vocabulary.decode(&[id])
    }

    /// Returns `text` with `tokens` in place of its masks, in order; each is the result of [`Self::token`].
    pub fn filled(&self, text: &str, tokens: &[String]) -> String {
        let (mut filled, mut rest) = (String::with_capacity(text.len()), text);
        for token in tokens {
            let found = self.spellings.iter().filter_map(|mask| Some((rest.find(mask.as_str())?, mask.len())));
            let Some((at, len)) = found.min() else { break };
            filled.push_str(&rest[..at]);
            rest = &rest[at + len..];

            match self.continues.as_deref().and_then(|mark| token.strip_prefix(mark)) {
                Some(part) => {
                    filled.truncate(filled.trim_end().len());
                    filled.push_str(part);
                }
                None if filled.is_empty() || filled.ends_with(char::is_whitespace) => {
                    filled.push_str(token.trim_start());
                }
                None => filled.push_str(token),
            }
        }
        filled + rest
    }
}

/// Makes the mask an added token that is found in texts. The settings of a published tokenizer stay, so that texts have the ids that
/// they have in `transformers`. Without them the mask takes the white space in front of it: the space belongs to the hidden word in
/// vocabularies that write spaces into tokens.
fn with_readable_mask(json: &str, name: &str, id: u32, settings: Option<&Value>) -> Result<Value> {
    let mut parts: Value = serde_json::from_str(json).map_err(|e| not_a_tokenizer(None, &e))?;
    let flag = |key: &str, without: bool| settings.map_or(without, |settings| settings[key] == Value::Bool(true));
    let readable = json!({
        "id": id, "content": name, "single_word": flag("single_word", false), "lstrip": flag("lstrip", true),
        "rstrip": flag("rstrip", false), "normalized": flag("normalized", false), "special": false,
    });
    let added = parts["added_tokens"].as_array().cloned().unwrap_or_default();
    let (mut added, behind): (Vec<Value>, Vec<Value>) =
        added.into_iter().filter(|token| token["id"] != id).partition(|token| token["id"].as_u64() < Some(id.into()));
    added.push(readable);
    added.extend(behind);
    parts["added_tokens"] = added.into();

    // Masks cut a text into parts. In rows of training only the first part begins with a new word.
    if settings.is_none() {
        prepend_to_first(&mut parts["pre_tokenizer"]);
    }
    Ok(parts)
}

/// Makes Metaspace put a space in front of the beginning of a text only.
fn prepend_to_first(pre_tokenizer: &mut Value) {
    if pre_tokenizer["type"] == "Metaspace" && pre_tokenizer["prepend_scheme"] == "always" {
        pre_tokenizer["prepend_scheme"] = "first".into();
    }
    pre_tokenizer["pretokenizers"].as_array_mut().into_iter().flatten().for_each(prepend_to_first);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::TextFixture;
    use crate::tokenizer::{TokenizerConfig, TokenizerKind};

    const TEXT: &str = "the old man walked down to the river, and looked at the boats";

    fn encoder(kind: TokenizerKind) -> (TextTokenizer, MaskedEncoder) {
        let config = TokenizerConfig { kind, vocab_size: 700, ..TokenizerConfig::default() };
        let tokenizer = TextFixture::new(&vec![TEXT.to_owned(); 20], &config).tokenizer;
        let encoder = MaskedEncoder::new(&tokenizer).expect("it has a mask");
        (tokenizer, encoder)
    }

    /// A row with a mask is the row that training makes when it hides the token.
    #[test]
    fn a_mask_takes_the_place_of_the_token_that_training_hides() {
        let kinds = [TokenizerKind::WordPiece, TokenizerKind::ByteLevelBpe, TokenizerKind::Bpe];
        for kind in kinds {
            let (tokenizer, encoder) = encoder(kind);
            let (before, behind) = tokenizer.around();
            let row = |text: &str| [&before[..], &tokenizer.encode(text).expect("text"), &behind].concat();
            assert_eq!(encoder.encode(TEXT).expect("text"), row(TEXT), "{kind:?}: a text without masks");

            let mut n_hidden = 0;
            for word in ["man", "river", "boats"] {
                let whole = row(TEXT);
                let ids = tokenizer.encode(&format!(" {word}")).expect("a word");
                let Some(place) = whole.iter().position(|id| ids == [*id]) else { continue }; // two tokens
                let mut hidden = whole;
                hidden[place] = encoder.mask();
                n_hidden += 1;
                for mask in ["[MASK]", "<mask>", encoder.mask_token()] {
                    let text = TEXT.replace(word, mask);
                    assert_eq!(encoder.encode(&text).expect("text"), hidden, "{kind:?}: {text}");
                }
            }
            assert!(n_hidden > 0, "{kind:?} splits all words");
        }
    }

    #[test]
    fn tokens_take_the_place_of_masks_and_the_rest_stays() {
        let (_, encoder) = encoder(TokenizerKind::WordPiece);
        let filled = |text: &str, tokens: [&str; 2]| encoder.filled(text, &tokens.map(str::to_owned));
        assert_eq!(filled("The Old [MASK], <mask>!", ["man", "he"]), "The Old man, he!");
        assert_eq!(filled("walk [MASK] walk[MASK].", ["##ed", "##ing"]), "walked walking.");
        assert_eq!(filled("[MASK] of [MASK]", [" one", " two"]), "one of two");
        assert_eq!(filled("no mask", ["a", "b"]), "no mask");
        assert_eq!(encoder.without_masks("The Old [MASK], <mask>!"), "The Old , !");
    }
}
