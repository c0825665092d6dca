//! Text from operators: nothing that is typed panics, and what is accepted reads back as itself.
use nrs::{NrsConfig, TbfRules, Weights, keys};
use proptest::prelude::*;

/// Words that commands are made of, so that random texts get far into the parsers.
fn command() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        Just("start"),
        Just("change"),
        Just("stop"),
        Just("a"),
        Just("b"),
        Just("default"),
        Just("*"),
        Just("{*}"),
        Just("uid={1}"),
        Just("uid={1 5-9}&opcode={ost_read}"),
        Just("jobid={dd.0},client={client3}"),
        Just("uid={"),
        Just("opcode={*}"),
        Just("&"),
        Just(","),
        Just("rate=5"),
        Just("rate=1000000"),
        Just("rate=0"),
        Just("bytes=1M"),
        Just("bytes=16E"),
        Just("depth=9"),
        Just("depth=65535"),
        Just("rank=a"),
        Just("rank=default"),
        Just(";"),
        Just("\n"),
        Just("rate=é"),
        Just("="),
    ];
    prop::collection::vec(word, 0..12).prop_map(|words| words.join(" "))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    #[test]
    fn rules_that_are_accepted_read_back_as_themselves(first in command(), second in command()) {
        let mut rules = TbfRules::default();
        let _ = rules.apply_all(&format!("start a uid={{7}} rate=3; {first}"));
        let before = rules.clone();
        if rules.apply_all(&second).is_err() {
            prop_assert_eq!(&rules, &before);
        }
        prop_assert_eq!(rules.rules().last().map(|r| r.name.as_str()), Some("default"));
        let mut again = TbfRules::default();
        prop_assert_eq!(again.apply_all(&rules.to_commands()), Ok(()));
        prop_assert_eq!(again, rules);
    }

    #[test]
    fn values_that_are_accepted_read_back_as_themselves(text in prop_oneof![command(), "\\PC*", "[0-9.,KMGT-]{0,12}"]) {
        for key in keys() {
            let mut config = NrsConfig::default();
            if config.set(key.name, &text).is_err() {
                prop_assert_eq!(config, NrsConfig::default());
                continue;
            }
            let printed = config.get(key.name).expect("the key is in the table");
            prop_assert!(!printed.contains('\n'), "{} prints {:?}", key.name, printed);
            let mut again = NrsConfig::default();
            prop_assert_eq!(again.set(key.name, &printed), Ok(()));
            prop_assert_eq!(again, config, "{} = {}", key.name, text);
        }
        let _ = Weights::parse(&text);
    }
}
