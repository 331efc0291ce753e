package rego

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"

	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/util"

	"github.com/paceline-sched/paceline/policies/signature"
)

// SignaturesFile is the name of the file with a bundle's signature.
const SignaturesFile = ".signatures.json"

// Sign returns the signatures file for a bundle's directory, under an Ed25519 private key in PEM that servers know as id.
func Sign(dir fs.FS, key []byte, id string) ([]byte, error) {
	private, err := signature.PrivateKey(key)
	if err != nil {
		return nil, err
	}
	hasher, err := bundle.NewSignatureHasher(bundle.SHA256)
	if err != nil {
		return nil, err
	}
	var files []bundle.FileInfo
	err = walkBundle(dir, func(name string) error {
		if isTest(name) || name == SignaturesFile {
			return nil
		}
		raw, err := readBounded(dir, name)
		if err != nil {
			return err
		}
		var content any = raw
		if bundle.IsStructuredDoc(path.Base(name)) { // signed by what it says, however it is laid out
			if err := util.Unmarshal(raw, &content); err != nil {
				return fmt.Errorf("read %s: %w", name, plain(err))
			}
		}
		sum, err := hasher.HashFile(content)
		if err != nil {
			return err
		}
		files = append(files, bundle.NewFile(name, hex.EncodeToString(sum), string(bundle.SHA256)))
		return nil
	})
	if err != nil {
		return nil, err
	}
	text, err := tokenText(map[string]string{"alg": "EdDSA", "kid": id}, map[string]any{"files": files})
	if err != nil {
		return nil, err
	}
	token := text + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(private, []byte(text)))
	return json.Marshal(map[string][]string{"signatures": {token}})
}

// tokenText is what a signature is made over: the parts of a JSON Web Token (RFC 7519).
func tokenText(head, body any) (string, error) {
	h, err := json.Marshal(head)
	if err != nil {
		return "", err
	}
	b, err := json.Marshal(body)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(h) + "." + base64.RawURLEncoding.EncodeToString(b), nil
}
