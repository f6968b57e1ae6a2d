//! What a rule is called when it was expected and something else was found.

use crate::Rule;

impl Rule {
    /// The word of a keyword rule.
    pub fn keyword(self) -> Option<&'static str> {
        Some(match self {
            Rule::kw_and => "and",
            Rule::kw_append => "append",
            Rule::kw_as => "as",
            Rule::kw_assert => "assert",
            Rule::kw_assume => "assume",
            Rule::kw_at => "at",
            Rule::kw_axes => "axes",
            Rule::kw_back => "back",
            Rule::kw_by => "by",
            Rule::kw_carrying => "carrying",
            Rule::kw_checkpoint => "checkpoint",
            Rule::kw_collect => "collect",
            Rule::kw_deadline => "deadline",
            Rule::kw_delay => "delay",
            Rule::kw_dim => "dim",
            Rule::kw_else => "else",
            Rule::kw_enum => "enum",
            Rule::kw_env => "env",
            Rule::kw_every => "every",
            Rule::kw_expect => "expect",
            Rule::kw_extends => "extends",
            Rule::kw_extern => "extern",
            Rule::kw_fails => "fails",
            Rule::kw_fn => "fn",
            Rule::kw_for => "for",
            Rule::kw_freeze => "freeze",
            Rule::kw_from => "from",
            Rule::kw_halt => "halt",
            Rule::kw_id => "id",
            Rule::kw_if => "if",
            Rule::kw_in => "in",
            Rule::kw_init => "init",
            Rule::kw_keep => "keep",
            Rule::kw_latest => "latest",
            Rule::kw_let => "let",
            Rule::kw_match => "match",
            Rule::kw_mesh => "mesh",
            Rule::kw_minimising => "minimising",
            Rule::kw_model => "model",
            Rule::kw_most => "most",
            Rule::kw_of => "of",
            Rule::kw_offload => "offload",
            Rule::kw_on => "on",
            Rule::kw_or => "or",
            Rule::kw_over => "over",
            Rule::kw_paired => "paired",
            Rule::kw_param => "param",
            Rule::kw_pending => "pending",
            Rule::kw_phase => "phase",
            Rule::kw_place => "place",
            Rule::kw_plan => "plan",
            Rule::kw_pool => "pool",
            Rule::kw_publish => "publish",
            Rule::kw_recipe => "recipe",
            Rule::kw_recompute => "recompute",
            Rule::kw_record => "record",
            Rule::kw_reduce => "reduce",
            Rule::kw_remove => "remove",
            Rule::kw_repeat => "repeat",
            Rule::kw_replicated => "replicated",
            Rule::kw_require => "require",
            Rule::kw_rest => "rest",
            Rule::kw_retries => "retries",
            Rule::kw_rollout => "rollout",
            Rule::kw_run => "run",
            Rule::kw_scan => "scan",
            Rule::kw_seed => "seed",
            Rule::kw_set => "set",
            Rule::kw_settings => "settings",
            Rule::kw_split => "split",
            Rule::kw_stages => "stages",
            Rule::kw_state => "state",
            Rule::kw_step => "step",
            Rule::kw_test => "test",
            Rule::kw_the => "the",
            Rule::kw_then => "then",
            Rule::kw_timeout => "timeout",
            Rule::kw_type => "type",
            Rule::kw_unit => "unit",
            Rule::kw_until => "until",
            Rule::kw_update => "update",
            Rule::kw_use => "use",
            Rule::kw_view => "view",
            Rule::kw_virtual => "virtual",
            Rule::kw_when => "when",
            Rule::kw_where => "where",
            Rule::kw_with => "with",
            Rule::kw_within => "within",
            Rule::kw_workers => "workers",
            _ => return None,
        })
    }

    /// Whether the rule stands between two operands or behind one.
    pub fn continues_expression(self) -> bool {
        matches!(
            self,
            Rule::pipe_op
                | Rule::to_op
                | Rule::on_op
                | Rule::or_op
                | Rule::and_op
                | Rule::eq_op
                | Rule::ne_op
                | Rule::le_op
                | Rule::lt_op
                | Rule::ge_op
                | Rule::gt_op
                | Rule::in_op
                | Rule::range_incl_op
                | Rule::range_op
                | Rule::add_op
                | Rule::sub_op
                | Rule::mul_op
                | Rule::div_op
                | Rule::floor_div_op
                | Rule::rem_op
                | Rule::contract_op
                | Rule::pow_op
                | Rule::call
                | Rule::index
                | Rule::field
                | Rule::open_range
                | Rule::with_args
                | Rule::from_text
        )
    }

    /// The rule in a user's words; none where naming it would not help.
    pub fn describe(self) -> Option<&'static str> {
        if self.continues_expression() {
            return Some("an operator");
        }
        Some(match self {
            Rule::EOI => "the end of the line",
            Rule::word
            | Rule::name
            | Rule::names
            | Rule::path
            | Rule::name_expr
            | Rule::carry
            | Rule::use_name => "a name",
            Rule::number | Rule::bound | Rule::bound_value => "a number",
            Rule::unit_word | Rule::unit | Rule::percent_unit => "a unit",
            Rule::text => "a text in quotes",
            Rule::arrow => "`->`",
            Rule::assign => "`=`",
            Rule::colon => "`:`",
            Rule::type_
            | Rule::unit_type
            | Rule::id_type
            | Rule::fn_type
            | Rule::tuple_type
            | Rule::apply_type => "a type",
            Rule::type_list => "`(`",
            Rule::optional => "`?`",
            Rule::within_type => "`in`",
            Rule::at_most_type => "`at most`",
            Rule::where_type => "`where`",
            Rule::code | Rule::code_word => "the code of an error",
            Rule::pending => "`pending`",
            Rule::layouts => "dims in `[ ]`",
            Rule::layout | Rule::dim_expr | Rule::dim_group => "a dim",
            Rule::axis_use | Rule::splits => "`@` and an axis",
            Rule::expr
            | Rule::simple
            | Rule::neg_op
            | Rule::not_op
            | Rule::some_op
            | Rule::rest_expr
            | Rule::lambda
            | Rule::if_expr
            | Rule::match_expr
            | Rule::for_expr
            | Rule::scan_expr
            | Rule::collect_expr
            | Rule::value
            | Rule::expr_stmt
            | Rule::simple_list => "an expression",
            Rule::quantity => "a number with a unit",
            Rule::of_clause => "`of`",
            Rule::bool_lit => "`true` or `false`",
            Rule::none_lit => "`none`",
            Rule::name_tuple | Rule::tuple => "`( )`",
            Rule::list | Rule::setting_list => "`[ ]`",
            Rule::record | Rule::setting_map | Rule::block_expr => "`{ }`",
            Rule::record_value | Rule::setting_entry => "`name: value`",
            Rule::over_text => "`over`",
            Rule::setting | Rule::setting_off => "`path = value`",
            Rule::setting_path | Rule::setting_key => "a path",
            Rule::setting_value => "a plain value",
            Rule::arg => "an argument",
            Rule::arg_name => "an argument name",
            Rule::all => "`*`",
            Rule::rename => "`dim -> dim`",
            Rule::arms => "arms in `{ }`",
            Rule::arm => "an arm `pattern -> value`",
            Rule::pattern
            | Rule::some_pattern
            | Rule::tuple_pattern
            | Rule::value_pattern
            | Rule::variant_pattern => "a pattern",
            Rule::carrying => "`carrying`",
            Rule::until_clause => "`until`",
            Rule::where_clause => "`where`",
            Rule::within_clause => "`within`",
            Rule::block => "a block in `{ }`",
            Rule::stmt
            | Rule::run_stmt
            | Rule::seed_stmt
            | Rule::place_stmt
            | Rule::freeze_stmt
            | Rule::phase_stmt
            | Rule::step_stmt
            | Rule::every_stmt
            | Rule::from_stmt
            | Rule::halt_stmt
            | Rule::require_stmt
            | Rule::expect_stmt
            | Rule::assert_stmt
            | Rule::fails_stmt
            | Rule::assume_stmt
            | Rule::update_stmt
            | Rule::publish_stmt
            | Rule::set_stmt
            | Rule::append_stmt
            | Rule::remove_stmt
            | Rule::settings_stmt
            | Rule::plan_for
            | Rule::mesh
            | Rule::pool
            | Rule::view => "a statement",
            Rule::bind => "`name = value`",
            Rule::with_open => "`with`",
            Rule::with_item | Rule::update_part | Rule::process_option => "a setting",
            Rule::delay_item => "`delay`",
            Rule::seed_clause => "`seed`",
            Rule::by_value | Rule::by_clause => "`by`",
            Rule::for_clause | Rule::plan_model => "`for`",
            Rule::checkpoint_stmt => "`checkpoint`",
            Rule::keep_clause => "`keep`",
            Rule::latest_clause => "`and the latest`",
            Rule::every_clause => "`every`",
            Rule::item
            | Rule::use_item
            | Rule::fn_item
            | Rule::extern_fn
            | Rule::extern_env
            | Rule::model_item
            | Rule::record_item
            | Rule::enum_item
            | Rule::plan_item
            | Rule::recipe_item
            | Rule::rollout_item
            | Rule::test_item
            | Rule::type_item
            | Rule::unit_item => "an item",
            Rule::use_names => "names in `{ }`",
            Rule::as_clause => "`as`",
            Rule::params => "parameters in `( )`",
            Rule::param => "a parameter",
            Rule::result => "`->` and a type",
            Rule::signature => "`fn`",
            Rule::members => "members in `{ }`",
            Rule::member => "a `dim`, `param`, `repeat` or `fn`",
            Rule::dims => "`dim`",
            Rule::dim_decl => "`name = size`",
            Rule::param_decl => "`param`",
            Rule::init_clause => "`init`",
            Rule::param_from => "`from`",
            Rule::tie => "`or`",
            Rule::cond => "`if`",
            Rule::repeat => "`name: repeat`",
            Rule::record_field => "`name: type`",
            Rule::variant => "a variant",
            Rule::plan_mesh | Rule::on_view => "`on`",
            Rule::rules => "rules in `{ }`",
            Rule::plan_rule => "a rule",
            Rule::recompute_rule | Rule::recompute_mode => "`recompute`",
            Rule::reduce_rule => "`reduce`",
            Rule::state_rule => "`state`",
            Rule::offload_rule => "`offload`",
            Rule::at_rule => "`dim: @axis`",
            Rule::stages => "`stages over`",
            Rule::virtual_clause => "`virtual`",
            Rule::split_clause => "`split`",
            Rule::paired_clause => "`paired`",
            Rule::axes => "axes in `( )`",
            Rule::axis => "`axis: size`",
            // Keywords are quoted by `keyword`; the others are never where a reading stops.
            Rule::reserved
            | Rule::not_unit
            | Rule::trailing_comma
            | Rule::call
            | Rule::index
            | Rule::field
            | Rule::open_range
            | Rule::with_args
            | Rule::from_text
            | Rule::bad_line
            | Rule::bad_group
            | Rule::bad_inside
            | Rule::process_options
            | Rule::item_only
            | Rule::stmt_only
            | Rule::setting_only
            | Rule::setting_line
            | Rule::member_only
            | Rule::field_only
            | Rule::variant_only
            | Rule::rule_only
            | Rule::signature_only
            | Rule::arm_only
            | Rule::expr_only
            | Rule::type_only
            | Rule::override_only
            | Rule::kw_and
            | Rule::kw_append
            | Rule::kw_as
            | Rule::kw_assert
            | Rule::kw_assume
            | Rule::kw_at
            | Rule::kw_axes
            | Rule::kw_back
            | Rule::kw_by
            | Rule::kw_carrying
            | Rule::kw_checkpoint
            | Rule::kw_collect
            | Rule::kw_deadline
            | Rule::kw_delay
            | Rule::kw_dim
            | Rule::kw_else
            | Rule::kw_enum
            | Rule::kw_env
            | Rule::kw_every
            | Rule::kw_expect
            | Rule::kw_extends
            | Rule::kw_extern
            | Rule::kw_fails
            | Rule::kw_fn
            | Rule::kw_for
            | Rule::kw_freeze
            | Rule::kw_from
            | Rule::kw_halt
            | Rule::kw_id
            | Rule::kw_if
            | Rule::kw_in
            | Rule::kw_init
            | Rule::kw_keep
            | Rule::kw_latest
            | Rule::kw_let
            | Rule::kw_match
            | Rule::kw_mesh
            | Rule::kw_minimising
            | Rule::kw_model
            | Rule::kw_most
            | Rule::kw_of
            | Rule::kw_offload
            | Rule::kw_on
            | Rule::kw_or
            | Rule::kw_over
            | Rule::kw_paired
            | Rule::kw_param
            | Rule::kw_pending
            | Rule::kw_phase
            | Rule::kw_place
            | Rule::kw_plan
            | Rule::kw_pool
            | Rule::kw_publish
            | Rule::kw_recipe
            | Rule::kw_recompute
            | Rule::kw_record
            | Rule::kw_reduce
            | Rule::kw_remove
            | Rule::kw_repeat
            | Rule::kw_replicated
            | Rule::kw_require
            | Rule::kw_rest
            | Rule::kw_retries
            | Rule::kw_rollout
            | Rule::kw_run
            | Rule::kw_scan
            | Rule::kw_seed
            | Rule::kw_set
            | Rule::kw_settings
            | Rule::kw_split
            | Rule::kw_stages
            | Rule::kw_state
            | Rule::kw_step
            | Rule::kw_test
            | Rule::kw_the
            | Rule::kw_then
            | Rule::kw_timeout
            | Rule::kw_type
            | Rule::kw_unit
            | Rule::kw_until
            | Rule::kw_update
            | Rule::kw_use
            | Rule::kw_view
            | Rule::kw_virtual
            | Rule::kw_when
            | Rule::kw_where
            | Rule::kw_with
            | Rule::kw_within
            | Rule::kw_workers
            | Rule::pipe_op
            | Rule::to_op
            | Rule::on_op
            | Rule::or_op
            | Rule::and_op
            | Rule::eq_op
            | Rule::ne_op
            | Rule::le_op
            | Rule::lt_op
            | Rule::ge_op
            | Rule::gt_op
            | Rule::in_op
            | Rule::range_incl_op
            | Rule::range_op
            | Rule::add_op
            | Rule::sub_op
            | Rule::mul_op
            | Rule::div_op
            | Rule::floor_div_op
            | Rule::rem_op
            | Rule::contract_op
            | Rule::pow_op
            | Rule::WHITESPACE
            | Rule::sep
            | Rule::comma_sep
            | Rule::ident_char
            | Rule::digits
            | Rule::exponent
            | Rule::operand_start
            | Rule::type_atom
            | Rule::type_suffix
            | Rule::dim_operand
            | Rule::dim_infix
            | Rule::simple_primary
            | Rule::prefix
            | Rule::infix
            | Rule::infix_more
            | Rule::closer
            | Rule::lambda_ahead
            | Rule::postfix
            | Rule::primary
            | Rule::index_item
            | Rule::arm_line
            | Rule::line
            | Rule::bracket
            | Rule::signature_line
            | Rule::member_line
            | Rule::field_line
            | Rule::variant_line
            | Rule::rule_line => return None,
        })
    }
}
