" Syntax of the recipe language. The words are tested against the grammar.
if exists("b:current_syntax")
  finish
endif

syntax keyword nrlControl if then else match for some let
syntax keyword nrlOperator and or not in on to of
syntax keyword nrlConstant true false none rest
syntax keyword nrlItem enum extern fn mesh model plan pool recipe record rollout test type unit use view
syntax keyword nrlStatement append assert assume checkpoint every expect freeze from halt phase place publish remove require run seed set settings step update
syntax keyword nrlInside as at axes back by carrying collect deadline delay dim env extends fails id init keep latest minimising minimizing most offload over paired param pending recompute reduce repeat replicated retries scan split stages state the timeout until virtual when where with within workers
syntax keyword nrlType int float bool text record range loss Model Data Samples Sample Row Generator Optimizer Schedule Plan Cluster f32 bf16
syntax match nrlNumber "\<\d[0-9_]*\(\.\d[0-9_]*\)\?\([eE][-+]\?\d\+\)\?\>"
syntax match nrlUnit "\(\d\s\+\)\@<=[A-Za-z]\+\(/[A-Za-z]\+\)*\>"
syntax match nrlAxis "@[A-Za-z_]\w*"
syntax match nrlFunction "\<[A-Za-z_]\w*\ze("
syntax match nrlArgument "\<[A-Za-z_]\w*\ze:"
syntax match nrlEscape contained "\\\(u{\x\+}\|.\)"
syntax region nrlText start=+"+ skip=+\\.+ end=+"+ oneline contains=nrlEscape
syntax region nrlText start=+\<r"+ end=+"+ oneline
syntax match nrlComment "#.*$" contains=nrlTodo,nrlAllow
syntax match nrlDoc "##.*$"
syntax match nrlAllow contained "nrlc: allow([^)]*)"
syntax keyword nrlTodo contained TODO

highlight default link nrlControl Conditional
highlight default link nrlOperator Operator
highlight default link nrlConstant Constant
highlight default link nrlItem Structure
highlight default link nrlStatement Statement
highlight default link nrlInside Keyword
highlight default link nrlType Type
highlight default link nrlNumber Number
highlight default link nrlUnit Type
highlight default link nrlAxis Special
highlight default link nrlFunction Function
highlight default link nrlArgument Identifier
highlight default link nrlEscape SpecialChar
highlight default link nrlText String
highlight default link nrlComment Comment
highlight default link nrlDoc SpecialComment
highlight default link nrlAllow PreProc
highlight default link nrlTodo Todo

let b:current_syntax = "nrl"
