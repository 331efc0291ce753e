package policy

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/paceline-sched/paceline/policies/signature"
)

func newSignCommand() *cobra.Command {
	var key, id string
	cmd := &cobra.Command{
		Use:   "sign FILE",
		Short: "Sign a module, without a server",
		Long: `Sign a module: the signature is written to FILE.sig, from where push takes it. The key is an Ed25519 private key in PEM; servers take the module
whose --policy-keys has the public key as ID.pem.`,
		Example: `  openssl genpkey -algorithm ed25519 -out ops.key
  openssl pkey -in ops.key -pubout -out keys/ops.pem
  paceline policy sign tight.wasm --key ops.key --id ops`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			raw, err := os.ReadFile(key)
			if err != nil {
				return mistakef("read the key: %w", err)
			}
			module, err := readModule(files[0])
			if err != nil {
				return err
			}
			text, err := signature.Sign(module, raw, id)
			if err != nil {
				return mistakef("sign the module %s: %w", files[0], err)
			}
			if err := os.WriteFile(files[0]+".sig", text, 0o644); err != nil { //nolint:gosec // a signature is public
				return fmt.Errorf("write the signature: %w", err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "module %s is signed by %s\n", files[0], id)
			return nil
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "file with the private key")
	cmd.Flags().StringVar(&id, "id", "", "what servers call the key")
	for _, name := range []string{"key", "id"} {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // the flag is there
		}
	}
	return cmd
}
