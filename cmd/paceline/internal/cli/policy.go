package cli

import "github.com/spf13/cobra"

const policyHelp = `Policies decide where tasks go. They are WebAssembly modules, in any language that compiles to it; what they say to the scheduler, and it to
them, is in docs/policy-abi.md.

The verbs here need no server: what passes verify is what a server takes.`

func (a *app) policyCommand() *cobra.Command {
	adopt(a.Policies)
	return noun("policy", "Make, judge and measure policies of placement", policyHelp, a.Policies...)
}
