package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weir-rl/weir/internal/admin/client"
	"github.com/weir-rl/weir/internal/server/settings"
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
	cmd.PersistentFlags().StringVar(&c.Address, "server", address,
		"URL of the admin port of a running server, such as "+defaultAdmin+
			", or its host:port, or unix:/path (also WEIR_SERVER)")
	cmd.PersistentFlags().StringVar(&c.TokenFile, "token-file", "",
		"file whose first line is the bearer token for --server, such as one of auth.tokens_file (also WEIR_TOKEN_FILE)")
	cmd.PersistentFlags().StringVar(&c.CAFile, "ca", "",
		"file of the authorities that --server's certificate is of, in PEM, if the system does not know them")
	cmd.PersistentFlags().StringVar(&c.CertFile, "cert", "",
		"file of the certificate to show to --server, in PEM; needs --cert-key")
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

// fromEnvironment gives the flags that name a server, and were left out, the values of variables. A
// command that asks a server only if it is named does so only by its flag.
func fromEnvironment(cmd *cobra.Command, env []string) error {
	address, token := cmd.Flag("server"), cmd.Flag("token-file")
	if address == nil || token == nil {
		return nil
	}
	asks := address.DefValue != "" || cmd.Flag("id") != nil && cmd.Flag("id").Changed
	for i, f := range []*pflag.Flag{address, token} {
		value := ""
		for _, v := range env {
			if name, of, _ := strings.Cut(v, "="); name == settings.ClientVariables[i] {
				value = of
			}
		}
		if value == "" || f.Changed || !asks && !address.Changed || f == address && !asks {
			continue
		}
		if err := f.Value.Set(value); err != nil {
			return usageError(fmt.Errorf("%s: %w", settings.ClientVariables[i], err))
		}
	}
	return nil
}

// ask is Do for a command with --json, which prints the answer as it is.
func (c *adminClient) ask(cmd *cobra.Command, asJSON bool, method, path string, in, out any) error {
	var raw json.RawMessage
	if err := c.Do(cmd.Context(), method, path, in, &raw); err != nil {
		return err
	}
	if asJSON {
		if _, err := cmd.OutOrStdout().Write(raw); err != nil {
			return err
		}
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("%s answered with something else than was asked for: %w", c.Name(), err)
	}
	return nil
}

// open checks the flags. It must come before the methods of Client.
func (c *adminClient) open() (err error) {
	if c.Client, err = client.Open(c.Options); err != nil {
		return usageError(err)
	}
	return nil
}
