{{/* The release's name in object names; a release called paceline is called so alone. */}}
{{- define "paceline.name" -}}
{{- if contains "paceline" .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-paceline" (.Release.Name | trunc 43 | trimSuffix "-") }}{{ end -}}
{{- end }}

{{- define "paceline.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "paceline.name" .) }}
{{- end }}

{{/* What selects the pod; it never changes. */}}
{{- define "paceline.selector" -}}
app.kubernetes.io/name: paceline
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "paceline.labels" -}}
{{ include "paceline.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/component: server
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end }}
