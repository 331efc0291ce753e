package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// Ask makes one request as the administrator, in JSON: body is sent unless it is nil, and what is answered goes into into unless that is nil.
func (p *Plane) Ask(ctx context.Context, method, path string, body, into any) error {
	var content io.Reader = http.NoBody
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("ask the API server: %w", err)
		}
		content = bytes.NewReader(raw)
	}
	request, err := http.NewRequestWithContext(ctx, method, fmt.Sprintf("https://127.0.0.1:%d%s", p.port, path), content)
	if err != nil {
		return fmt.Errorf("ask the API server: %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+Token)
	request.Header.Set("Content-Type", "application/json")
	answer, err := p.client.Do(request)
	if err != nil {
		return fmt.Errorf("ask the API server: %w", err)
	}
	defer func() { _ = answer.Body.Close() }() // it was read
	raw, err := io.ReadAll(answer.Body)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if answer.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, raw)
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}
