//! The builtin functions of the host language, with their types.

use serde::{Deserialize, Serialize};

/// Types of host values, for checking.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostType {
    None,
    Bool,
    Num,
    Text,
    List(Box<HostType>),
    /// A record whose fields are not known (a row of data).
    Record,
    /// `T?`.
    Maybe(Box<HostType>),
    Any,
}

impl HostType {
    pub fn list(of: HostType) -> HostType {
        HostType::List(Box::new(of))
    }

    pub fn maybe(of: HostType) -> HostType {
        HostType::Maybe(Box::new(of))
    }

    /// Can a value of type `self` stand where `want` is asked for?
    pub fn fits(&self, want: &HostType) -> bool {
        match (self, want) {
            (HostType::Any, _) | (_, HostType::Any) => true,
            (HostType::None, HostType::Maybe(_)) => true,
            (HostType::Maybe(a), HostType::Maybe(b)) => a.fits(b),
            (a, HostType::Maybe(b)) => a.fits(b),
            (HostType::List(a), HostType::List(b)) => a.fits(b),
            (a, b) => a == b,
        }
    }

    /// The type of a value that is one or the other.
    pub fn either(a: HostType, b: HostType) -> HostType {
        match (a, b) {
            (a, b) if a == b => a,
            (HostType::None, t) | (t, HostType::None) => match t {
                HostType::Maybe(_) | HostType::Any => t,
                t => HostType::maybe(t),
            },
            (HostType::Maybe(a), b) | (b, HostType::Maybe(a)) if *a == b => HostType::Maybe(a),
            _ => HostType::Any,
        }
    }

    /// In user words.
    pub fn describe(&self) -> String {
        match self {
            HostType::None => "none".into(),
            HostType::Bool => "bool".into(),
            HostType::Num => "number".into(),
            HostType::Text => "text".into(),
            HostType::List(t) => format!("list({})", t.describe()),
            HostType::Record => "record".into(),
            HostType::Maybe(t) => format!("{}?", t.describe()),
            HostType::Any => "any value".into(),
        }
    }
}

macro_rules! builtins {
    ($($(#[$doc:meta])* $variant:ident $name:literal ($($arg:ident),*) -> $ret:ident;)*) => {
        /// A builtin function.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Builtin { $($(#[$doc])* $variant),* }

        impl Builtin {
            pub const ALL: &'static [Builtin] = &[$(Builtin::$variant),*];

            /// Name in the language.
            pub fn name(self) -> &'static str {
                match self { $(Builtin::$variant => $name),* }
            }

            /// Types of the arguments and of the result.
            pub fn signature(self) -> (Vec<HostType>, HostType) {
                match self { $(Builtin::$variant => (vec![$(ty(Kind::$arg)),*], ty(Kind::$ret))),* }
            }
        }
    };
}

enum Kind {
    Bool,
    Num,
    Text,
    Nums,
    Texts,
    List,
    Record,
    MaybeNum,
    MaybeText,
    Any,
}

fn ty(kind: Kind) -> HostType {
    match kind {
        Kind::Bool => HostType::Bool,
        Kind::Num => HostType::Num,
        Kind::Text => HostType::Text,
        Kind::Nums => HostType::list(HostType::Num),
        Kind::Texts => HostType::list(HostType::Text),
        Kind::List => HostType::list(HostType::Any),
        Kind::Record => HostType::Record,
        Kind::MaybeNum => HostType::maybe(HostType::Num),
        Kind::MaybeText => HostType::maybe(HostType::Text),
        Kind::Any => HostType::Any,
    }
}

builtins! {
    /// `a + b`.
    Add "+" (Num, Num) -> Num;
    Sub "-" (Num, Num) -> Num;
    Mul "*" (Num, Num) -> Num;
    Div "/" (Num, Num) -> Num;
    /// Remainder with the sign of the divisor.
    Mod "mod" (Num, Num) -> Num;
    Pow "pow" (Num, Num) -> Num;
    Neg "neg" (Num) -> Num;
    Eq "==" (Any, Any) -> Bool;
    Lt "<" (Num, Num) -> Bool;
    Le "<=" (Num, Num) -> Bool;
    And "and" (Bool, Bool) -> Bool;
    Or "or" (Bool, Bool) -> Bool;
    Not "not" (Bool) -> Bool;
    Abs "abs" (Num) -> Num;
    Min "min" (Num, Num) -> Num;
    Max "max" (Num, Num) -> Num;
    Floor "floor" (Num) -> Num;
    Ceil "ceil" (Num) -> Num;
    Round "round" (Num) -> Num;
    Sqrt "sqrt" (Num) -> Num;
    Exp "exp" (Num) -> Num;
    Log "log" (Num) -> Num;
    Cos "cos" (Num) -> Num;
    Sin "sin" (Num) -> Num;
    /// 1 for true, 0 for false.
    Number "number" (Bool) -> Num;
    /// Text joined end to end.
    Concat "concat" (Text, Text) -> Text;
    /// Number of characters.
    TextLen "text_len" (Text) -> Num;
    /// Number of items.
    ListLen "list_len" (List) -> Num;
    Lower "lower" (Text) -> Text;
    Upper "upper" (Text) -> Text;
    /// Without white space at either end.
    Trim "trim" (Text) -> Text;
    /// Parts between separators.
    Split "split" (Text, Text) -> Texts;
    /// Parts between runs of white space.
    Words "words" (Text) -> Texts;
    Lines "lines" (Text) -> Texts;
    Join "join" (Texts, Text) -> Text;
    Contains "contains" (Text, Text) -> Bool;
    StartsWith "starts_with" (Text, Text) -> Bool;
    EndsWith "ends_with" (Text, Text) -> Bool;
    Replace "replace" (Text, Text, Text) -> Text;
    /// One text per character.
    Chars "chars" (Text) -> Texts;
    /// `slice(text, from, to)` in characters, ends cut to the text.
    Slice "slice" (Text, Num, Num) -> Text;
    /// What stands between the first `open` and the next `close`.
    Between "between" (Text, Text, Text) -> MaybeText;
    /// What stands after the last occurrence.
    AfterLast "after_last" (Text, Text) -> MaybeText;
    /// The argument of the last `\boxed{..}`, braces balanced.
    Boxed "boxed" (Text) -> MaybeText;
    /// Does the regular expression match anywhere?
    Matches "matches" (Text, Text) -> Bool;
    /// First group of the first match (the whole match if there is no group).
    Capture "capture" (Text, Text) -> MaybeText;
    /// All matches, as `capture` gives them.
    Captures "captures" (Text, Text) -> Texts;
    /// Reads one number: `1,024`, `-3.5`, `1e-3`, `3/4`, `50 %`, `$7`.
    ParseNumber "parse_number" (Text) -> MaybeNum;
    /// All numbers in a text, in order.
    Numbers "numbers" (Text) -> Nums;
    /// Decimal text, without a fraction when whole.
    ShowNumber "show" (Num) -> Text;
    /// Item `i`, from the end if negative; none if there is no such item.
    At "at" (List, Num) -> Any;
    First "first" (List) -> Any;
    Last "last" (List) -> Any;
    Sort "sort" (List) -> List;
    Reverse "reverse" (List) -> List;
    /// Pairs of items up to the shorter end, as records `{a, b}`.
    Zip "zip" (List, List) -> List;
    /// `0, 1, .. n - 1`, at most a million.
    Range "range" (Num) -> Nums;
    Sum "sum" (Nums) -> Num;
    Append "append" (List, List) -> List;
    IsNone "is_none" (Any) -> Bool;
    /// The first if it is not none, else the second.
    OrElse "or_else" (Any, Any) -> Any;
    /// Field by name; none if there is no such field.
    Get "get" (Record, Text) -> Any;
    /// Whole number in `low..=high`, the same for the same key.
    RandomInt "random_int" (Num, Num, Num) -> Num;
    /// `random_text(alphabet, length, key)`: characters drawn with replacement.
    RandomText "random_text" (Text, Num, Num) -> Text;
    /// Levenshtein distance in characters.
    EditDistance "edit_distance" (Text, Text) -> Num;
    /// Optional text as text; empty if none.
    TextOr "text_or" (MaybeText, Text) -> Text;
    NumberOr "number_or" (MaybeNum, Num) -> Num;
}

impl Builtin {
    /// The builtin called `name` in the language.
    pub fn find(name: &str) -> Option<Builtin> {
        Builtin::ALL.iter().copied().find(|b| b.name() == name)
    }
}
