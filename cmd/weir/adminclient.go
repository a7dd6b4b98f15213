package main

import (
	"github.com/spf13/cobra"

	"github.com/weir-rl/weir/internal/admin/client"
)

// adminClient asks the admin port of the server that flags name.
type adminClient struct {
	client.Options
	*client.Client
}

// defaultAdmin is the default address of a server's admin port.
const defaultAdmin = client.Default

// flags adds --server and --token-file.
func (c *adminClient) flags(cmd *cobra.Command, address string) {
	cmd.PersistentFlags().StringVar(&c.Address, "server", address, "URL of the admin port of a running server, such as "+defaultAdmin+" or unix:/path")
	cmd.PersistentFlags().StringVar(&c.TokenFile, "token-file", "", "file whose first line is the bearer token for --server, such as that of auth.tokens_file")
	cmd.PersistentFlags().StringVar(&c.CAFile, "ca", "", "file of the authorities that --server's certificate is of, in PEM, if the system does not know them")
	cmd.PersistentFlags().StringVar(&c.CertFile, "cert", "", "file of the certificate to show to --server, in PEM; needs --cert-key")
	cmd.PersistentFlags().StringVar(&c.KeyFile, "cert-key", "", "file of the private key of --cert, in PEM")
	// Its earlier name, which weir tail has for something else.
	cmd.PersistentFlags().StringVar(&c.KeyFile, "key", "", "the same as --cert-key")
	_ = cmd.PersistentFlags().MarkHidden("key")
}

// completeFlag lets a shell complete the value of a flag.
func completeFlag(cmd *cobra.Command, name string, values []string) {
	complete := cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
	if err := cmd.RegisterFlagCompletionFunc(name, complete); err != nil {
		panic(err) // there is no such flag
	}
}

// open checks the flags. It must come before the methods of Client.
func (c *adminClient) open() (err error) {
	if c.Client, err = client.Open(c.Options); err != nil {
		return usageError(err)
	}
	return nil
}
