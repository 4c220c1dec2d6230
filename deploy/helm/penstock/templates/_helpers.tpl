{{- define "penstock.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "penstock.fullname" -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "penstock.config" -}}
data_dir = "/var/lib/penstock"
{{- with .Values.config }}
{{ . }}
{{- end }}
{{- range $name, $listener := .Values.listeners }}

[listeners.{{ $name }}]
bind = "0.0.0.0:{{ $listener.port }}"
{{- if $.Values.insecure }}
insecure = true
{{- end }}
{{- if $.Values.tls.secretName }}
tls.cert = "/etc/penstock/tls/tls.crt"
tls.key = "/etc/penstock/tls/tls.key"
{{- if $.Values.tls.clientCertificates }}
tls.client_ca = "/etc/penstock/tls/ca.crt"
{{- end }}
{{- end }}
{{- with $listener.settings }}
{{ . | trim }}
{{- end }}
{{- end }}

[admin]
bind = "0.0.0.0:{{ .Values.admin.port }}"
insecure = true
{{- end }}
